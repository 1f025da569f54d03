"""One run of ibdiagnet on a fabric of 9 switches and 263 adapters."""

from tests.expected._expected import Expected

NO_PORTS = "a dump of ibdiagnet without ports in it"
EXPECTED = {
    "gmh_ibdiagnet2.db_csv.gz": Expected(
        kind="ibdiagnet",
        rows={"ports": 542, "link_counters": 1084, "topology_links": 542},
        how="sed -n '/^START_PM_INFO/,/^END_/p' | wc -l: 542 ports, PM_DELTA as many; "
        "LINKS: 271 links of two directions",
    ),
    "gmh_ibdiagnet2.ibnetdiscover": Expected(
        kind="ibnetdiscover",
        rows={"ports": 542, "topology_links": 542},
        how="grep -c '^\\[': 542",
    ),
    "gmh_ibdiagnet2.lst": Expected(
        kind="ibdiagnet_dump",
        rows={"ports": 542, "topology_links": 542},
        how="grep -c '^{ ': 271 lines of two ends",
    ),
    "gmh_ibdiagnet2.net_dump": Expected(
        kind="ibdiagnet_dump",
        rows={"ports": 585, "topology_links": 279},
        how="grep -cE '^ +[^ ]+ +: [0-9]+ +: (ACT|DOWN|INI)': 585 ports; of these with 0x: 279",
    ),
    "gmh_ibdiagnet2.net_dump_ext": Expected(
        kind="ibdiagnet_dump",
        rows={"ports": 841, "topology_links": 528},
        how="grep -cE '^(CA|SW) :': 841; of these ' ACT ': 528",
    ),
    "gmh_ibdiagnet2.log": Expected(
        kind="ibdiagnet_dump",
        state="rejected",
        rejects=1,
        reason=NO_PORTS,
        how="it reports what the run did; its counters are in db_csv",
    ),
    "gmh_ibdiagnet2.rnc2": Expected(
        kind="ibdiagnet_dump",
        state="rejected",
        rejects=1,
        reason=NO_PORTS,
        how="cat: maxima of the whole fabric, all 0 or N/A",
    ),
}
