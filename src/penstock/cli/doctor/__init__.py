"""`penstock doctor`: what keeps a deployment from working here, and how to mend each."""
