"""What ibnetdiscover prints, read line by line: both of its forms, and its grouped form.

In the topology form the GUID in ``"H-..."`` is the node's, the one in round brackets the port's;
``-p`` prints port GUIDs only (ibnetdiscover.c, ``out_switch_port``, ``dump_ports_report``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xtune.collectors._base import Context, Item, RowBuffer
from xtune.collectors._fabric_samples import TOOL_MESSAGE
from xtune.collectors._ib import family_of, guid, rate_of
from xtune.collectors._ib_time import parse_utc_stamp
from xtune.collectors._ib_topology import End, Fabric

NODE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"[SHR]-([0-9a-f]{1,16})"\s*#\s*"(.*)"(.*)')
_PORT = re.compile(
    r"\[(\d{1,3})\](?:\[ext \d+\])?(?:\(([^)]*)\))*\s+"  # port, its label, an adapter's own GUID
    r'"([SHR])-([0-9a-f]{1,16})"\[(\d{1,3})\](?:\[ext \d+\])?(?:\s?\(([0-9a-f]{1,16})\))?'
    r"\s*#\s*(.*)"
)
_OWN_GUID = re.compile(r"\[\d{1,3}\](?:\([^)]*\))*?\(([0-9a-f]{1,16})\)\s")
_SPEED = re.compile(
    r"\s(\d{1,2}x|\?\?)([A-Z]{3}\d*|\?\?\?)"
    r"(?:\s+s=\d+ w=\d+ v=\d+)?(?:\s+slot \d+|\s+\(scp\))?\s*$"  # -f, and Xsigo's
)
#: In old versions a port line ended with the LID.
_NO_SPEED = re.compile(r'"\s+lid \d{1,5}\s*$')
_NAME = re.compile(r'"(.*)"')
_OWN_LID = re.compile(r"lid (\d{1,5}) lmc \d")
_FAR_LID = re.compile(r'"\s+lid (\d{1,5})(?=\s|$)')
_BASE_LID = re.compile(r"port 0 lid (\d{1,5})\b")
_SWITCH_GUIDS = re.compile(r"switchguid=0x([0-9a-f]{1,16})\(([0-9a-f]{1,16})\)")
_DEVICE_ID = re.compile(r"devid=0x([0-9a-f]{1,8})")
LINE = re.compile(
    r"(CA|SW|RT|\?\?)\s+(\d{1,6})\s+(\d{1,3})\s+0x([0-9a-f]{16})\s+(\d{1,2}x|\?\?)\s+(\S+)"
    r"(?:\s+-\s+(CA|SW|RT|\?\?)\s+(\d{1,6})\s+(\d{1,3})\s+0x([0-9a-f]{16})"
    r"\s+\(\s'(.*)'\s-\s'(.*)'\s\)"
    r"|\s+('.*'|(?!-(?:\s|$)|').*?))\s*"
)
_LISTED = re.compile(r'(Switch|Ca|Router)\s+: 0x[0-9a-f]{16} ports \d+ devid 0x.* "(.*)"\s*')
_IGNORED = re.compile(
    r"(vendid|sysimgguid|switchguid|caguid|rtguid)=|Chassis \d+|Hostname: |Non-Chassis Nodes"
)


_NO_END = "a port line without far end and speed at its end"


def _text_name(text: str | None) -> str | None:
    return (text or "").strip().strip("'").strip() or None


class Reading:
    """State of one discovery: the block it is in, what was found, what is unsure.

    Attributes:
        fabric: Nodes and links.
        ports: What is known of each port, by (GUID, port number).
        lids: By (GUID, port number); a switch has one, at port 0.
        devices: Device id of each node, where the topology form gives it.
        ts: Time of the discovery where it is said with a zone.
        local_stamp: The line that gives it without one.
        port_guids: Adapter ports known by their port's GUID only.
        switch_of: Node GUID of a switch by the GUID of its port 0, which may differ.
        listed: Nodes of the list form, which has no ports.
        messages: Lines of the tool's error stream.
        understood: Lines that told something.
    """

    def __init__(self) -> None:
        self.fabric = Fabric()
        self.ports: dict[tuple[str, int], dict[str, Any]] = {}
        self.lids: dict[tuple[str, int], int] = {}
        self.devices: dict[str, int] = {}
        self.ts: int | None = None
        self.local_stamp = ""
        self.port_guids = 0
        self.switch_of: dict[str, str] = {}
        self.listed = self.messages = 0
        self.understood = 0
        self._node: str | None = None
        self._device: int | None = None
        self._unsure = ""  # a port line without a speed: cut, if nothing comes after it
        self._speeds = self._speedless = 0

    def finish(self) -> str | None:
        """What is wrong with the last line, or ``None``."""
        line, self._unsure = self._unsure, ""
        if not line:
            return None
        if self._speeds or not self._speedless:
            return _NO_END
        self.understood += 1
        return self._port_of_block(line.rstrip("0123456789"))  # its LID may be cut

    def take(self, line: str) -> str | None:
        """Take any line; what is wrong with it, or ``None``."""
        unsure, self._unsure = self._unsure, ""
        if unsure:
            self._speedless += 1
            self.understood += 1
            self._port_of_block(unsure)
        text = line.strip()
        if text.startswith("#"):
            if "generated" in text and self.ts is None and not self.local_stamp:
                self.local_stamp = text
            if "timestamp" in text:
                self.ts = parse_utc_stamp(text)
            return None
        if TOOL_MESSAGE.match(text):
            self.messages += 1
            return None
        guids = _SWITCH_GUIDS.match(text)
        if guids and (node := guid(guids[1])) and (port := guid(guids[2])):
            self.switch_of[port] = node
        device = _DEVICE_ID.match(text)
        if device:
            self._node, self._device = None, int(device[1], 16)
            return None
        if not text or _IGNORED.match(text):
            # A block ends here: the ports that follow are of another node.
            self._node = None
            return None
        if _LISTED.fullmatch(text):
            self.listed += 1
            return None
        match = LINE.fullmatch(line.rstrip() + " ") or LINE.fullmatch(line)
        wrong = self._port_line(match) if match else self._block_line(text)
        self.understood += wrong is None and not self._unsure
        return wrong

    def family(self, node: str) -> str | None:
        """Device family of a node, where its device id is known."""
        return family_of(self.devices.get(node))

    def _port(self, node: str | None, number: int, **about: Any) -> None:
        """Note what is known of a port; what was known of it stays."""
        own = about.get("port_guid") if node is None else node
        row = self.ports.setdefault((own or "", number), {})
        row |= {k: v for k, v in {"node_guid": node, **about}.items() if v is not None}

    def _block_line(self, line: str) -> str | None:
        """Take a line of the topology form; what is wrong with it, or ``None``."""
        match = NODE.match(line)
        if match:
            self._node = guid(match[2])
            if self._node is None:
                return "a node with GUID 0"
            self.fabric.node(self._node, match[1] == "Ca", match[3].strip())
            if self._device is not None:
                self.devices[self._node] = self._device
            lid = _BASE_LID.search(match[4])
            if lid:
                self.lids[self._node, 0] = int(lid[1])
            return None
        match = _PORT.match(line)
        if not match:
            if not line.startswith("["):
                self._node = None  # a damaged header: what follows is not the last node's
            return "neither a node nor a port"
        if self._node is None:
            return "a port without its node"
        if _SPEED.search(line):
            self._speeds += 1
        elif guid(match[4]) is None or not _NO_SPEED.search(line):
            return _NO_END
        else:
            self._unsure = line
            return None
        return self._port_of_block(line)

    def _port_of_block(self, line: str) -> str | None:
        """Note the link of a port line."""
        match, speed = _PORT.match(line), _SPEED.search(line)
        if match is None or self._node is None or (far := guid(match[4])) is None:
            return _NO_END
        number, far_number = int(match[1]), int(match[5])
        width = speed[1].upper() if speed and speed[1] != "??" else None
        rate = rate_of(speed[1], speed[2]) if speed else None
        name = _NAME.search(match[7])
        is_far_ca = match[3] == "H"
        self.fabric.node(far, is_far_ca, name[1].strip() if name else None)
        own = _OWN_GUID.match(line) if self.fabric.ca.get(self._node) else None
        same = {"width": width, "rate_gbps": rate, "state": "ACTIVE"}
        self._port(self._node, number, port_guid=guid(own[1]) if own else None, **same)
        self._port(far, far_number, port_guid=guid(match[6]), **same)
        own_lid, far_lid = _OWN_LID.match(match[7]), _FAR_LID.search(match[7])
        if own_lid:
            self.lids[self._node, number] = int(own_lid[1])
        if far_lid:
            self.lids[far, far_number if is_far_ca else 0] = int(far_lid[1])
        return self.fabric.link(End(self._node, number), End(far, far_number), width, rate)

    def _port_line(self, match: re.Match[str]) -> str | None:
        """Take a line of the ``-p`` form; what is wrong with it, or ``None``."""
        near_guid = guid(match[4])
        if near_guid is None:
            return "a port with GUID 0"
        number, is_ca = int(match[3]), match[1] == "CA"
        width = None if match[5] == "??" else match[5].upper()
        rate = rate_of(match[5], match[6])
        self.lids[near_guid, number if is_ca else 0] = int(match[2])
        if match[10] is None:
            # Nothing is plugged in; the width and speed printed are not those of a link.
            self._seen(near_guid, number, is_ca, _text_name(match[13]), None, None)
            return None
        far_guid = guid(match[10])
        if far_guid is None:
            return "a far end with GUID 0"
        far_number, far_ca = int(match[9]), match[7] == "CA"
        self.lids[far_guid, far_number if far_ca else 0] = int(match[8])
        self._seen(near_guid, number, is_ca, match[11].strip(), width, rate)
        self._seen(far_guid, far_number, far_ca, match[12].strip(), width, rate)
        near, far = End(near_guid, number, is_ca), End(far_guid, far_number, far_ca)
        return self.fabric.link(near, far, width, rate)

    def _seen(
        self, own: str, number: int, ca: bool, name: str | None, width: str | None, rate: Any
    ) -> None:
        self.fabric.node(own, ca, name)
        if ca and (own, number) not in self.ports:
            self.port_guids += 1
        self._port(None if ca else own, number, port_guid=own, width=width, rate_gbps=rate)

    def rows(self, ts: int | None, context: Context) -> Iterator[Item]:
        """Yield ``ports`` and ``topology_links``, each direction once."""
        buffer = RowBuffer("ports", context)
        for (own, number), about in self.ports.items():
            if number == 0:
                continue
            is_ca = self.fabric.ca.get(own, False)
            lid = self.lids.get((own, number if is_ca else 0))
            buffer.add(
                {
                    "ts": ts,
                    "port": number,
                    "link": f"{own}/{number}",
                    "link_layer": "InfiniBand",
                    "node_description": self.fabric.description.get(own),
                    "device_family": self.family(own),
                    **about,
                    "extra": {"lid": str(lid)} if lid else None,
                }
            )
            if buffer.full:
                yield from buffer.flush()
        yield from buffer.flush()
        yield from self.fabric.rows(ts, context)
