"""What each rule weighs, whom it is for and who may answer for it: changed on purpose, or not at all."""

import validators.rules  # noqa: F401  registers every rule
from validators.finding import Severity
from validators.rule import RULES

WARN = """
ATT007 CFG008 CFG009 CFG013 CKP011 CKP015 CKP016 DAT005 DAT008 DAT017 DAT024 DAT025
DAT031 DAT034 DAT035 DST003 GPU006 GPU008 GPU009 HST002 HST003 HST007 HST010 HST012 MEM002
MEM003 MOD003 MOD007 NUM004 OPT001 OPT002 OPT006 OPT007 PRF002 PRF003 PRF004 SCH004 SCH005
SCH006 TSK004 TSK011 TSK012 TSK013 TSK014 TSK015 TSK017
"""
NOBODY_ANSWERS = """
ATT003 ATT005 ATT006 CFG001 CFG002 CFG003 CFG006 CFG007 CFG009 CFG010 CFG011 CFG012 CKP007 CKP008 DAT013
DAT018 DST001 DST002 DST004 DST005 DST006 DST007 GPU007 HST006 HST009 MOD002 MOD005 PLG001 PLG002 PLG004
"""
PRODUCTION_ONLY = """
BUD003 CFG008 CKP003 DAT008 GPU004 GPU008 GPU009 HST008 HST010 MEM004 MOD001 OPT007
"""
ANY_DEVICE = "NUM001 NUM002 NUM003 NUM004"


def test_these_warn_and_all_others_block():
    assert {code for code, rule in RULES.items() if rule.severity is Severity.WARN} == set(WARN.split())


def test_nobody_may_answer_for_these():
    assert {code for code, rule in RULES.items() if not rule.waivable} == set(NOBODY_ANSWERS.split())


def test_these_are_for_production_only():
    assert {code for code, rule in RULES.items() if rule.production_only} == set(PRODUCTION_ONLY.split())


def test_these_say_as_much_of_a_cpu():
    assert {code for code, rule in RULES.items() if rule.any_device} == set(ANY_DEVICE.split())
