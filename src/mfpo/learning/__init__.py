"""The mathematics of learning: pure functions that know neither environments nor engines."""
