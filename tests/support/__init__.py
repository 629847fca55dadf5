"""Fakes of devices and networks that tests run on."""
