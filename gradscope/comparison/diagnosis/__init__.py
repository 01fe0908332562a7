"""Diagnosis: where two runs first diverge, which layer is to blame, and the sentence that says so."""
