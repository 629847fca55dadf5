"""Fakes of devices and networks that tests run on, and fixtures that several folders share."""
