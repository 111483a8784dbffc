"""The hot loops: functions over arrays, compiled by numba once a machine, without the GIL.

How it works: every kernel is decorated by `compile.kernel`, takes only contiguous arrays and
scalars, writes into arrays that its caller owns, and returns counts. Errors are numbers
(`errors`), which the callers turn into `CorruptionError` with the file's name.

    arrays.py    dtypes of the tables that kernels fill (batches, statistics) and error numbers
    compile.py   the decorators, when to compile at all, the compile cache, warming up
    intrinsics.py  instructions that numba has no name for; imports numba
    primitives.py  unaligned loads, varints, CRC-32C, SipHash: inlined into the loops
    scan.py      batch headers of a chunk -> table of batches; records -> key hashes and offsets
    offset_map.py  the map key hash -> last offset: insert, probe, partition by hash
    produced.py  the records of a batch that is about to be appended, checked
    digest.py    batch headers folded into block checksums, and held against them
    arrow_columns.py  records as Arrow's offsets and bytes, for reading
    columns.py   every field of every record, for counting, checking and comparing
    retain.py    which batches and records stay, and why not; the bytes of the records that stay
    rewrite.py   the bytes of the cleaned chunk
    frames.py    lz4 and zstd payloads of many batches, decompressed and compressed in one call
    native_call.py  calls of C functions by address, which `frames.py` is given

Invariants
- K1  The same functions run as plain Python, and give the same results: while a process has little
      to do, and under NUMBA_DISABLE_JIT=1.
- K2  A kernel reads nothing outside the bounds it was given, whatever the bytes say.
- K3  Each kernel has a naive twin in `tests/naive`.
"""
