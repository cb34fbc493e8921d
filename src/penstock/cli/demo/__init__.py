"""`penstock demo`: a whole deployment under the workload of a shop, with every target verified."""
