"""The HTTP that our servers share: who may ask, limits, errors."""
