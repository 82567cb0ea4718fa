"""The engine for a real network: one server, agents on many machines, carried by Flower.

The learning lives in a long-lived process beside every agent (`agent`). The Flower apps only carry messages to it
(`client_app`) and from it (`server_app`), so that nothing but the contract's `Download` and `Upload`, and a report of
returns and lengths of episodes, ever leaves a machine. Nothing here is imported unless a federation is used.
"""
