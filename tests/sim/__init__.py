"""A simulated disk whose power can be cut at any call, and what is tried on it.

    nodes, file, disk   the disk: `SimDisk` is a `FileSystem` in memory with durable and volatile
                        contents and names
    cuts                every disk that may be found after a cut
    explore             cuts a scenario (and the recovery after it) at every operation, judges all
    mutants, trials     the same with a barrier left out or two steps exchanged: is it noticed?
    barriers            those that may be, and why
    faults              the nth call fails

How to add a scenario
---------------------
1. A start: a `SimDisk` with what lies there before, made durable (`disk.sync_all()`; do not cut
   the power while the scene is being laid).

2. A scenario, `run(disk, journal)`: product code against `disk`, in one thread, without chance and
   without the time of day (`FixedClock`). Say `journal.begin(x)` before what may be found done or
   not, and `journal.promise(y)` as soon as the product has acknowledged it: y replaces what was
   promised before, and nothing is in flight any more. Both values are yours, but hashable; keep
   them small (a count, an offset, a tuple of either). Use `begin` for deletions, too: "gone" is a
   promise like any other.

3. A judge, `judge(image, promise, in_flight)`: recovers the image as the product does at start,
   then asserts: what was promised is there, in order; what was removed is not back; nothing is
   there that was never written. `promise` is None before the first one. The image is the judge's
   own. Any exception fails the state, an error of the product as well as an assertion.

4. Explore it:

       stats = explore(run, judge, seed=1, max_states=20_000, start=disk,
                       depth2=Depth2(recover, share=0.02), name="...").count(count_cases)
       assert stats.states > ...      # a sweep that shrinks to nothing must not pass

   `recover(disk)` is the recovery alone; it is cut at every operation, too, for a share of the
   images, and must come to rest (recovering twice = once).

5. When it fails, the message ends in the call of `replay` that judges this one state again; set a
   breakpoint in the judge. `image.tree()` shows what is there, `disk.trace` what has been done.

6. `survivors(run, judge, max_states=..., start=disk)` leaves out each fsync and exchanges each
   adjacent pair, one at a time; what it answers is a barrier that no test needs, or a scenario that
   promises too little. `test_barriers` does it for the scenarios of a log store.

7. `for attach in every_fault(): ...` runs a piece of code once for every call that can fail and
   every error; see `test_faults.py`.
"""
