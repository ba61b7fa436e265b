"""The file: what is appended survives a crash at any byte, and nobody forks the chain."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.ledger import file as ledger_file
from checkins.ledger.chain import Ledger
from checkins.ledger.entry import MAX_LINE_BYTES, Closed, InvalidLedger, Reason
from checkins.ledger.file import LedgerBusy, LedgerFile, ledger_path, lines
from tests.ledger.ledgers import MODEL, Book, any_certificate, campaign, slots

SMALL = campaign()


def entries(count: int) -> list:
    return [Ledger().opening(SMALL, model=MODEL), *slots(SMALL, count)]


def file_with(folder: Path, content: bytes) -> Path:
    path = folder / "ledger.jsonl"
    path.write_bytes(content)
    return path


def test_what_is_appended_is_what_the_chain_says(tmp_path: Path) -> None:
    with LedgerFile(tmp_path) as file:
        for entry in entries(4):
            file.append(entry)
        ledger = file.ledger
    book = Book().run(SMALL)
    assert (tmp_path / "ledger.jsonl").read_bytes() == b"".join(book.lines)
    assert list(lines(tmp_path / "ledger.jsonl")) == book.lines
    assert ledger == book.ledger


def test_a_ledger_is_continued_where_it_ended(tmp_path: Path) -> None:
    for entry in entries(4):
        with LedgerFile(tmp_path) as file:
            file.append(entry)
    assert (tmp_path / "ledger.jsonl").read_bytes() == b"".join(Book().run(SMALL).lines)


@pytest.mark.slow
def test_a_crash_at_any_byte_of_an_append_loses_no_entry_that_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_file.os, "fsync", lambda descriptor: None)  # 600 times, too slow
    book = Book().run(SMALL, 3)
    before, last = b"".join(book.lines[:-1]), book.lines[-1]
    for kept in range(len(last) + 1):
        path = file_with(tmp_path, before + last[:kept])
        with LedgerFile(path) as file:
            whole = kept == len(last)
            assert file.torn == (b"" if whole else last[:kept])
            assert file.ledger.entries == len(book.lines) - (not whole)
            assert path.read_bytes() == before + last[:kept]  # reading repairs nothing
            for entry in entries(4)[file.ledger.entries :]:
                file.append(entry)
        assert path.read_bytes() == b"".join(Book().run(SMALL).lines)


@given(garbage=st.binary(max_size=200).filter(lambda tail: b"\n" not in tail))
def test_whatever_a_crash_left_without_a_newline_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes
) -> None:
    book = Book().run(SMALL, 1)
    path = file_with(tmp_path_factory.mktemp("torn"), b"".join(book.lines) + garbage)
    with LedgerFile(path) as file:
        assert file.torn == garbage
        file.append(entries(2)[-1])
        assert file.torn == b""
    assert list(lines(path)) == Book().run(SMALL, 2).lines


def test_a_refused_entry_leaves_a_torn_line_alone(tmp_path: Path) -> None:
    content = b"".join(Book().run(SMALL, 1).lines) + b"torn"
    path = file_with(tmp_path, content)
    with LedgerFile(path) as file:
        with pytest.raises(InvalidLedger, match="is slot 1, but slot 2"):
            file.append(entries(1)[-1])
        assert path.read_bytes() == content
        file.append(entries(2)[-1])  # a refusal is not the end


def test_two_torn_lines_are_not_a_crash(tmp_path: Path) -> None:
    path = file_with(tmp_path, b"".join(Book().run(SMALL, 1).lines) + b"torn\ntorn")
    with pytest.raises(InvalidLedger, match=r"ledger\.jsonl:3: is not JSON"):
        LedgerFile(path)


def test_a_changed_ledger_is_not_continued(tmp_path: Path) -> None:
    content = b"".join(Book().run(SMALL, 2).lines).replace(b'"slot":1', b'"slot":3')
    path = file_with(tmp_path, content)
    with pytest.raises(InvalidLedger, match=r"ledger\.jsonl:2: its hash does not match"):
        LedgerFile(path)
    path.write_bytes(b"")
    LedgerFile(path).close()  # the lock was given back


def test_a_line_is_one_write_and_two_syncs_make_it_and_its_file_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def told(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int, *rest: object) -> object:
            kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"
            done.append(f"{name} {kind}")
            return real(descriptor, *rest)

        monkeypatch.setattr(ledger_file.os, name, call)

    for name in ("write", "fsync", "ftruncate"):
        told(name)
    with LedgerFile(tmp_path) as file:
        assert done == ["fsync folder"]
        done.clear()
        file.append(entries(0)[0])
        assert done == ["write file", "fsync file"]
    done.clear()
    with LedgerFile(tmp_path) as file:
        assert done == []
    with (tmp_path / "ledger.jsonl").open("ab") as crashed:
        crashed.write(b"torn")
    with LedgerFile(tmp_path) as file:
        done.clear()
        file.append(entries(1)[1])
        assert done == ["ftruncate file", "fsync file", "write file", "fsync file"]


def failing(after: int) -> Callable[[int, bytes], int]:
    """A disk that is full after some bytes."""
    real = os.write

    def write(descriptor: int, content: bytes) -> int:
        return real(descriptor, content[:after])

    return write


@pytest.mark.parametrize("after", [0, 1, 100])
def test_a_full_disk_leaves_the_ledger_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with LedgerFile(tmp_path) as file:
        file.append(entries(0)[0])
        with monkeypatch.context() as broken:
            broken.setattr(ledger_file.os, "write", failing(after))
            with pytest.raises(OSError, match="No space left"):
                file.append(entries(1)[1])
        assert list(lines(file.path)) == Book().open(SMALL).lines
        file.append(entries(1)[1])
    assert list(lines(tmp_path / "ledger.jsonl")) == Book().run(SMALL, 1).lines


def test_after_a_failed_sync_nothing_is_appended_until_the_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with LedgerFile(tmp_path) as file:
        file.append(entries(0)[0])
        with monkeypatch.context() as broken:
            broken.setattr(ledger_file.os, "fsync", fail)
            with pytest.raises(OSError, match="Input/output"):
                file.append(entries(1)[1])
        with pytest.raises(InvalidLedger, match="open the ledger again"):
            file.append(entries(1)[1])
    with LedgerFile(tmp_path) as file:
        file.append(entries(2)[file.ledger.entries])


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    with LedgerFile(tmp_path) as file:
        file.append(entries(0)[0])
        with pytest.raises(LedgerBusy, match=r"ledger\.jsonl: another process has it open"):
            LedgerFile(tmp_path)
        assert len(list(lines(file.path))) == 1
    LedgerFile(tmp_path).close()


def test_a_closed_file_takes_nothing(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path)
    file.close()
    file.close()
    with pytest.raises(InvalidLedger, match="open the ledger again"):
        file.append(entries(0)[0])


WRITER = """
import sys, time
from checkins.ledger.file import LedgerBusy, LedgerFile
from tests.ledger.ledgers import campaign, slots, MODEL
long = campaign(slots=30)
every = list(slots(long, 30))
written = 0
while True:
    try:
        with LedgerFile(sys.argv[1]) as file:
            if file.ledger.entries == 0:
                file.append(file.ledger.opening(long, model=MODEL))
            elif file.ledger.entries <= 30:
                file.append(every[file.ledger.entries - 1])
            else:
                break
            written += 1
    except LedgerBusy:
        pass
    time.sleep(0.001)
print(written)
"""


@pytest.mark.slow
def test_two_processes_that_append_at_once_do_not_fork_the_chain(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        for _ in range(2)
    ]
    shares = [int(writer.communicate()[0]) for writer in writers]
    assert sum(shares) == 31
    assert list(lines(tmp_path / "ledger.jsonl")) == Book().run(campaign(slots=30)).lines


def test_a_folder_and_the_file_itself_are_the_same_ledger(tmp_path: Path) -> None:
    assert ledger_path(tmp_path) == tmp_path / "ledger.jsonl"
    assert ledger_path(tmp_path / "other.jsonl") == tmp_path / "other.jsonl"
    with pytest.raises(FileNotFoundError):
        LedgerFile(tmp_path / "nowhere" / "ledger.jsonl")


def test_a_file_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with path.open("wb") as file:
        file.truncate(2 * MAX_LINE_BYTES)  # sparse: it takes no room
    found = lines(path)
    assert len(next(found)) == MAX_LINE_BYTES + 1
    assert list(found) == []


def test_reading_takes_the_memory_of_one_line_however_many_there_are(tmp_path: Path) -> None:
    path = file_with(tmp_path, (b"x" * 10_000 + b"\n") * 2_000)
    tracemalloc.start()
    assert sum(1 for _ in lines(path)) == 2_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_closing_a_campaign_and_opening_the_next_goes_through_the_file_too(tmp_path: Path) -> None:
    with LedgerFile(tmp_path) as file:
        for entry in [*entries(4), Closed(Reason.COMPLETED, any_certificate(SMALL))]:
            file.append(entry)
        second = campaign(name="second")
        file.append(file.ledger.opening(second, model=MODEL))
        assert [run.campaign.name for run in file.ledger.runs] == ["small", "second"]
    with LedgerFile(tmp_path) as again:
        assert again.ledger == file.ledger
