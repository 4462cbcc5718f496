"""Heartbeats for frameworks: vigil.integrations.huggingface, .lightning and .pytorch.

Importing one of these imports no framework. A framework is imported when its callback is made, and only
then has to be installed.
"""
