"""Codes of the languages that can be identified from text."""

import re

# The languages that lingua identifies, as ISO 639-1:639-3.
LINGUA = dict(re.findall(
    r"(\w+):(\w+)",
    "af:afr ar:ara az:aze be:bel bg:bul bn:ben bs:bos ca:cat cs:ces cy:cym da:dan de:deu el:ell en:eng eo:epo "
    "es:spa et:est eu:eus fa:fas fi:fin fr:fra ga:gle gu:guj he:heb hi:hin hr:hrv hu:hun hy:hye id:ind is:isl "
    "it:ita ja:jpn ka:kat kk:kaz ko:kor la:lat lg:lug lt:lit lv:lav mi:mri mk:mkd mn:mon mr:mar ms:msa nb:nob "
    "nl:nld nn:nno pa:pan pl:pol pt:por ro:ron ru:rus sk:slk sl:slv sn:sna so:som sq:sqi sr:srp st:sot sv:swe "
    "sw:swa ta:tam te:tel th:tha tl:tgl tn:tsn tr:tur ts:tso uk:ukr ur:urd vi:vie xh:xho yo:yor zh:zho zu:zul"
))  # fmt: skip
# Scripts that only languages without lingua's support use: Amharic, Cherokee, Tamazight (Tifinagh).
SCRIPTS = {
    "am": re.compile(r"[\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f]"),
    "chr": re.compile(r"[\u13a0-\u13ff\uab70-\uabbf]"),
    "zgh": re.compile(r"[\u2d30-\u2d7f]"),
}
CODES = {code: short for short, long in LINGUA.items() for code in (short, long)} | {code: code for code in SCRIPTS}
CODES["amh"] = "am"


def identifiable_code(code: str) -> str | None:
    """Returns the code of an identifiable language, ISO 639-1 if there is one ("pt-BR": pt, "yor": yo), else None."""
    return CODES.get(code.lower().partition("-")[0])
