"""The process that owns data directories for long, and how it is found and spoken to.

    address   `stratalog-server.json`: where the server of a directory listens
    client    `RemoteDesk`: a `Desk` by REST; `find_server`                       imports little
    listener  a bound socket and the thread that serves it                       extra `server`
    protocol  HTTP that waits for no client forever               extra `server`
    process   the service, the listener and the address, started and stopped in order

Invariants
- I1  One process owns a directory: its lock is held from before anything is read until all is
      closed.
- I2  The address is told only while the server can be asked, and nobody who reads it later is
      misled: see `address`.
"""
