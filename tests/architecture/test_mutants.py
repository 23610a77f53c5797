"""The mutants of the protocol fit the code: ``make mutants`` takes minutes, and a mutant whose text is gone tests nothing."""

from __future__ import annotations

import pytest

from tests.mutants.mutant_run import mutated
from tests.mutants.protocol_mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_changes_one_place_and_compiles(mutant: Mutant) -> None:
    compile(mutated(mutant), mutant.file, "exec")
