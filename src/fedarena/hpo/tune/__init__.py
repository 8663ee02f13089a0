"""Searching the hyperparameters of a user's own configuration: ``fedarena tune``.

A study is a folder: ``study.yaml`` says what is searched, the journal (of the library Optuna) has the trials, and every
trial is an ordinary run in a folder of its own. Any number of processes may work on one study.
"""
