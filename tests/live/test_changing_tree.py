"""A tree that changes at every moment while it is read: no error, and never an old value."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from pathlib import Path

from tests.collectors_ib.helpers import gather, port_tree
from xtune.collectors import Context
from xtune.collectors._live_sysfs import SysfsSampler

GUIDS = [f"0a7f:bc12:45ef:{number:04x}" for number in (1, 2, 3)]


def change(root: Path, count: int, random_: random.Random, stop: threading.Event) -> None:
    """Raise counters, replace files, unplug, rename and plug in again; ``count`` only rises."""
    while not stop.is_set():
        count += 1
        here = sorted(path for path in root.iterdir() if path.is_dir())
        device = random_.choice(here)
        counters = device / "ports/1/counters"
        what = random_.random()
        if what < 0.5:
            with open(counters / "port_xmit_data", "r+b", buffering=0) as file:
                file.write(b"%d\n" % count)
        elif what < 0.7:
            new = root / ".new"
            new.write_text(f"{count}\n")
            os.replace(new, counters / "port_xmit_data")
        elif what < 0.8:
            device.rename(root / f"dev{count}")
        elif what < 0.9:
            guid = (device / "node_guid").read_text().strip()
            shutil.rmtree(device)
            time.sleep(0.002)
            plug(root.parent / "plug", f"dev{count}", guid, count).rename(root / f"dev{count}")
        else:
            (device / "ports/1/state").write_text(random_.choice(["4: ACTIVE\n", "1: DOWN\n"]))
        time.sleep(0.0005)


def plug(place: Path, name: str, guid: str, count: int) -> Path:
    words = {"port_xmit_data": count, "unicast_xmit_packets": 1}
    return port_tree(place, name, counters=words, node_guid=guid)


def test_values_never_go_back(tmp_path: Path) -> None:
    root = tmp_path / "sys"
    first = 10**9
    for number, guid in enumerate(GUIDS):
        plug(root, f"mlx5_{number}", guid, first + number)
    stop = threading.Event()
    writer = threading.Thread(target=change, args=(root, first + 10, random.Random(5), stop))
    sampler = SysfsSampler(root, "h", time.time_ns, time.monotonic_ns)
    writer.start()
    try:
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            sampler.tick()
            time.sleep(0.001)
    finally:
        stop.set()
        writer.join()
    rows = gather(sampler.take().rows(Context(now_ns=lambda: 0))).counters
    sampler.close()
    assert len(rows) > 100
    links = {f"0x{guid.replace(':', '')}/1" for guid in GUIDS}
    assert {row["link"] for row in rows} <= links
    for link in links:
        mine = sorted((row["ts"], row["port_xmit_data"]) for row in rows if row["link"] == link)
        values = [value for _, value in mine if value is not None]
        assert len(values) > 10
        assert values == sorted(values)
