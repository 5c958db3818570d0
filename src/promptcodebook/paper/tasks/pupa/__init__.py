"""PUPA: private queries answered with the help of an outside model."""
