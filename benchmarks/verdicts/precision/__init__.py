"""Deep models in two precisions, right and with one fault, that nothing was tuned on but the half that says so."""
