"""Tables 2 and 5 of the PHub paper, by the formulas of `penstock.plan`."""
