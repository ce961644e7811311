"""British spelling as American: colour, centre, realise, travelled, catalogue.

The rules need not give dictionary words, as both sides of a comparison go through them: it is enough that no two
different words become one.
"""

import re
from functools import cache

_OUR = (
    "arb ard arm behavi cand clam col demean endeav enam fav ferv flav glam harb hon hum lab misdemean neighb od parl "
    "ranc rig rum savi sav splend succ tum val vap vig"
)
_RE = (
    "accout calib cent fib goit lit lust manoeuv maneuv meag met mit och reconnoit sab salt scept sepulch somb spect "
    "theat kilomet millimet centimet amphitheat"
)
_LL = (
    "apparel barrel bejewel bevel cancel carol channel chisel counsel cudgel devil dial dishevel duel enamel equal "
    "fuel funnel gravel grovel initial jewel kennel label level libel marshal marvel medal metal model panel parcel "
    "pedal pencil peril pummel quarrel ravel refuel remodel revel rival shovel shrivel signal snivel spiral swivel "
    "symbol tassel total towel trammel travel trowel tunnel unravel victual yodel"
)
_NOT_IZE = (
    "advise appraise arise braise bruise chastise circumcise comprise compromise concise cruise demise despise devise "
    "disguise enterprise excise exercise expertise franchise improvise likewise louise merchandise otherwise paradise "
    "porpoise praise precise premise promise raise revise supervise surmise surprise televise tortoise treatise "
    "turquoise"
)
_WORDS = {
    "grey": "gray", "greys": "grays", "greyer": "grayer", "greyest": "grayest", "plough": "plow", "ploughs": "plows",
    "ploughed": "plowed", "ploughing": "plowing", "cheque": "check", "cheques": "checks", "tyre": "tire",
    "tyres": "tires", "programme": "program", "programmes": "programs", "storey": "story", "storeys": "stories",
    "sceptic": "skeptic", "sceptical": "skeptical", "scepticism": "skepticism", "mould": "mold", "moulds": "molds",
    "moulded": "molded", "moulding": "molding", "mouldy": "moldy", "moult": "molt", "smoulder": "smolder",
    "smouldering": "smoldering", "smouldered": "smoldered", "moustache": "mustache", "moustaches": "mustaches",
    "pyjamas": "pajamas", "aluminium": "aluminum", "aeroplane": "airplane", "aeroplanes": "airplanes", "axe": "ax",
    "doughnut": "donut", "doughnuts": "donuts", "draught": "draft", "draughts": "drafts", "gaol": "jail",
    "gaoler": "jailer", "judgement": "judgment", "judgements": "judgments", "acknowledgement": "acknowledgment",
    "ageing": "aging", "cosy": "cozy", "cosily": "cozily", "skilful": "skillful", "skilfully": "skillfully",
    "wilful": "willful", "wilfully": "willfully", "fulfil": "fulfill", "fulfils": "fulfills", "fulfilment":
    "fulfillment", "instalment": "installment", "instalments": "installments", "enrol": "enroll", "enrols": "enrolls",
    "enrolment": "enrollment", "woollen": "woolen", "jewellery": "jewelry", "marvellous": "marvelous",
    "marvellously": "marvelously", "okay": "ok", "sulphur": "sulfur", "waggon": "wagon", "waggons": "wagons",
    "connexion": "connection", "shew": "show", "shewed": "showed", "shewn": "shown", "defence": "defense",
    "defences": "defenses", "defenceless": "defenseless", "offence": "offense", "offences": "offenses",
    "licence": "license", "licences": "licenses", "pretence": "pretense", "pretences": "pretenses",
    "practise": "practice", "practised": "practiced", "practises": "practices", "practising": "practicing",
    "catalogue": "catalog", "catalogues": "catalogs", "dialogue": "dialog", "dialogues": "dialogs",
    "analogue": "analog", "monologue": "monolog", "prologue": "prolog", "epilogue": "epilog", "travelogue": "travelog",
    "anaesthetic": "anesthetic", "anaesthesia": "anesthesia", "encyclopaedia": "encyclopedia",
    "mediaeval": "medieval", "foetus": "fetus", "manoeuvre": "maneuver", "manoeuvres": "maneuvers",
    "paediatric": "pediatric", "diarrhoea": "diarrhea", "orthopaedic": "orthopedic", "archaeology": "archeology",
    "archaeologist": "archeologist", "archaeological": "archeological", "leukaemia": "leukemia", "anaemia": "anemia",
    "haemorrhage": "hemorrhage", "oesophagus": "esophagus", "aesthetic": "esthetic", "aesthetics": "esthetics",
    "whisky": "whiskey", "tranquillity": "tranquility", "chequered": "checkered", "furore": "furor", "kerb": "curb",
    "gramme": "gram", "grammes": "grams", "yoghurt": "yogurt", "artefact": "artifact", "artefacts": "artifacts",
    "carcase": "carcass", "cypher": "cipher", "gipsy": "gypsy", "gipsies": "gypsies",
    "counsellor": "counselor", "counsellors": "counselors", "traveller": "traveler", "travellers": "travelers",
    "jeweller": "jeweler", "councillor": "councilor", "councillors": "councilors",
}  # fmt: skip
_OUR_PATTERN = re.compile(rf"((?:un|dis|mis|re|co)?(?:{'|'.join(_OUR.split())}))our(\w*)")
_RE_PATTERN = re.compile(rf"({'|'.join(_RE.split())})re(s|d)?")
_LL_PATTERN = re.compile(rf"({'|'.join(word[:-1] for word in _LL.split())})ll(ed|ing|ings|er|ers)")
_ISE_PATTERN = re.compile(r"(\w{3,})is(e|ed|es|er|ers|ing|ation|ations|ational)")
_YSE_PATTERN = re.compile(r"(anal|paral|catal|electrol|dial|breathal)ys(e|ed|es|er|ers|ing)")


@cache
def american(word: str) -> str:
    """The American spelling of a word in lower case; other words stay as they are."""
    if word in _WORDS:
        return _WORDS[word]
    if (match := _OUR_PATTERN.fullmatch(word)) is not None:
        return f"{match[1]}or{match[2]}"
    if (match := _RE_PATTERN.fullmatch(word)) is not None:
        return f"{match[1]}er{match[2] or ''}"
    if (match := _LL_PATTERN.fullmatch(word)) is not None:
        return f"{match[1]}l{match[2]}"
    if (match := _YSE_PATTERN.fullmatch(word)) is not None:
        return f"{match[1]}yz{match[2]}"
    if (match := _ISE_PATTERN.fullmatch(word)) is not None and match[1] + "ise" not in _NOT_IZE.split():
        return f"{match[1]}iz{match[2]}"
    return word
