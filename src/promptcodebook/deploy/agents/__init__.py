"""Agents that exist, trained unchanged: `Agent` starts the user's program for each rollout and
gives it the address of an `Endpoint` of its own, which puts the composed prompt into the agent's
requests and asks the run's model for them."""

from promptcodebook.deploy.agents.agent import Agent, agent_of, typed

__all__ = ["Agent", "agent_of", "typed"]
