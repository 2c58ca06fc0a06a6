"""Which nodes run in integers because that is faster: prices, and the cheapest cut by them."""
