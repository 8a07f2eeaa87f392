import threading

import pytest

from neobert.data.batches.prefetch import WorkerThreads


@pytest.mark.parametrize("count", [0, 1, 4])
def test_results_and_errors_come_back(count):
    threads = WorkerThreads(count, "test")
    futures = [threads.submit(lambda number=number: 6 // number) for number in (1, 0, 3)]
    assert futures[0].result(5) == 6
    with pytest.raises(ZeroDivisionError):
        futures[1].result(5)
    assert futures[2].result(5) == 2
    threads.close()


def test_without_threads_the_caller_works():
    threads = WorkerThreads(0, "test")
    assert threads.submit(threading.get_ident).result(0) == threading.get_ident()
    threads.close()


def test_closing_lets_the_running_task_end_and_drops_the_rest():
    threads = WorkerThreads(1, "test")
    started, release = threading.Event(), threading.Event()
    running = threads.submit(lambda: (started.set(), release.wait(5)))
    waiting = threads.submit(lambda: "never")
    assert started.wait(5)
    threading.Timer(0.05, release.set).start()
    threads.close()
    assert running.done()
    assert waiting.cancelled()


def test_a_thread_that_hangs_does_not_hold_the_close(monkeypatch):
    monkeypatch.setattr("neobert.data.batches.prefetch.JOIN_S", 0.01)
    threads = WorkerThreads(1, "test")
    release = threading.Event()
    threads.submit(lambda: release.wait(30))
    threads.close()
    release.set()
    assert all(thread.daemon for thread in threads._threads)
