"""REST over a `Desk`: `create_app` (needs the extra `server`).

    app       the application: routes, guard, errors, its OpenAPI description
    guard     what no request gets past: hosts, origins, sizes, how many at once
    hosts     names of hosts, and which are loopback
    answers   documents and errors as responses; which error is which status and code
    background compactions that no request waits for
    bodies    what requests carry                                                  pydantic
    documents what answers carry, as schemas for the description                    pydantic
              (those of compaction in `documents_compaction`, what they share in `shapes`)
    routing   what the routes share; `topics`, `configs`, `compaction`, `server`: the routes
    scraping  what /metrics answers

Invariants
- I1  Every answer is one JSON object, but for metrics; every error has one shape,
      `{"error": {"code", "message"}}`.
- I2  The event loop waits for no disk: a desk's operations run in threads, a bounded number at
      once.
- I3  What a document says is the desk's; nothing is added, renamed or left out here.
"""
