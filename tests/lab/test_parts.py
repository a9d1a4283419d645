"""What a lab boots from, without booting it: module order, the archive, what is refused before anything starts."""

import subprocess
import sys
from pathlib import Path

import guests
import lab
import parts
import pytest
import tsc
import verbs_layer

HERE = Path(__file__).resolve().parent
INDEX = """kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/fs/netfs/netfs.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko
kernel/drivers/virtio/virtio-pci.ko:
"""


def command(*words):
    return subprocess.run([sys.executable, str(HERE / "command.py"), *words], capture_output=True, text=True)


def test_modules_come_after_what_they_need_and_once(tmp_path):
    (tmp_path / "modules.dep").write_text(INDEX)
    order = parts.load_order(tmp_path / "modules.dep", ["9p", "9pnet_virtio", "virtio_pci"])
    names = [Path(path).stem for path in order]
    assert names == ["9pnet", "netfs", "9p", "9pnet_virtio", "virtio-pci"]


def test_an_emulated_kernel_is_told_the_rate_of_its_counter_or_to_leave_it(monkeypatch, tmp_path):
    known = guests.clock_words(2_595_783)
    assert known == "tsc=reliable tsc_early_khz=2595783"
    assert guests.clock_words(None) == "tsc=unstable clocksource=hpet"
    (tmp_path / "clock").write_text("kvm-clock\n")
    monkeypatch.setattr(tsc, "CLOCK_SOURCE", tmp_path / "clock")
    assert tsc.khz() is None


def test_the_counter_is_measured_to_a_tenth_of_a_percent():
    rates = [tsc.khz() or 0 for _ in range(3)]
    assert max(rates) - min(rates) <= min(rates) / 1000


def test_a_kernel_without_a_needed_module_is_refused(tmp_path):
    (tmp_path / "modules.dep").write_text(INDEX)
    with pytest.raises(parts.LabError, match="no module overlay: expected a full Debian kernel"):
        parts.load_order(tmp_path / "modules.dep", ["overlay"])


def unpacked(archive):
    """(name, mode, content) of a "newc" archive, as initramfs-buffer-format.rst of the kernel describes it."""
    at, found = 0, []
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = archive[at + 110 : at + 110 + length - 1].decode()
        start = -(-(at + 110 + length) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found.append((name, mode, archive[start : start + size]))
        at = -(-(start + size) // 4) * 4


def test_the_archive_is_one_that_the_kernel_unpacks():
    entries = [("d", 0o040755, b""), ("d/file", 0o100644, b"hello"), ("link", 0o120777, b"d/file")]
    assert unpacked(b"".join(parts._cpio(entries))) == entries


def test_what_is_cached_is_the_newest_that_is_complete(tmp_path):
    for name, complete in (("6.1.0-9", True), ("6.1.0-57", True), ("6.1.0-58", False)):
        folder = tmp_path / f"linux-image-{name}-amd64"
        (folder / f"image/lib/modules/{name}").mkdir(parents=True)
        if complete:
            (folder / "complete").touch()
    assert parts.cached(tmp_path).release == "6.1.0-57"
    assert parts.cached(tmp_path / "empty") is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status"], 1, "lab: not up"),
        (["down"], 0, "lab: none was up"),
        (["ssh", "vm1", "true"], 3, "no lab is up in"),
        (["cable", "pull"], 3, "no lab is up in"),
    ],
)
def test_without_a_lab_commands_say_so(tmp_path, words, code, said):
    done = command("--run", str(tmp_path / "run"), *words)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_a_folder_whose_sockets_would_have_too_long_names_is_refused(tmp_path):
    with pytest.raises(parts.LabError, match="too long"):
        lab.start(tmp_path / ("x" * 90), tmp_path, 1.0, [])


def test_a_layer_is_merged_as_the_hosts_folders_are(tmp_path):
    """Over a link /lib to usr/lib, a folder /lib of a layer would hide the host's libraries."""
    for path in ("lib/x86_64/one.so", "usr/lib/x86_64/two.so", "sbin/tool"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "lib/x86_64/link.so").symlink_to("one.so")
    verbs_layer._merge(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["usr"]
    names = sorted(str(path.relative_to(tmp_path / "usr")) for path in tmp_path.rglob("*.so"))
    assert names == ["lib/x86_64/link.so", "lib/x86_64/one.so", "lib/x86_64/two.so"]
    assert (tmp_path / "usr/lib/x86_64/link.so").readlink() == Path("one.so")
    assert (tmp_path / "usr/sbin/tool").read_text() == "sbin/tool"


def test_a_layer_counts_only_once_it_is_complete(tmp_path):
    assert verbs_layer.cached(tmp_path) is None
    verbs_layer._folder(tmp_path).mkdir()
    assert verbs_layer.cached(tmp_path) is None
    (verbs_layer._folder(tmp_path) / "complete").touch()
    assert verbs_layer.cached(tmp_path) == verbs_layer._folder(tmp_path) / "root"
