"""The last act: four ways of prompting on the test split, and the policy file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from promptcodebook.method.evaluate import Evaluator
from promptcodebook.method.generator import joined
from promptcodebook.method.policy import Deployed, FixedPrompt, Prompter
from promptcodebook.method.state import State
from promptcodebook.method.train import Learner
from promptcodebook.session.events import Listener
from promptcodebook.session.models import Models, any_simulated
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.policy_file import PolicyFile
from promptcodebook.session.selection import greedy, progress, refuse_broken, state_at
from promptcodebook.session.unlearned import why_nothing_was_learned
from promptcodebook.session.verdict import Conclusion, conclude
from promptcodebook.store.events import Judged
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation

__all__ = ["POLICY", "Judge", "concat_prompt"]

POLICY = "policy.json"
"""Name of the policy file in a run's folder."""


def concat_prompt(base_prompt: str, state: State) -> str:
    """Every instinct in one prompt, in order: what the codebook is worth without routing."""
    return joined(base_prompt, "\n".join(state.parameters.codebook.texts))


class Judge:
    """Evaluates the rows that are not stored yet and concludes from all of them."""

    def __init__(
        self,
        plan: RunPlan,
        store: RunStore,
        learner: Learner,
        models: Models,
        listener: Listener,
    ) -> None:
        self._plan = plan
        self._store = store
        self._learner = learner
        self._simulated = any_simulated(set(models.by_role().values()))
        self._tell = listener
        low, _ = plan.config.reward_range
        self._evaluator = Evaluator(greedy(learner), plan.config.seed, low)

    async def conclude(self, best: State) -> Conclusion:
        """Writes the policy file, judges it on the test split, and says whether it is worth it."""
        self._write_policy(best)
        evaluations = [await self._row(name, p) for name, p in self._rows(best).items()]
        made = conclude(evaluations, self._plan.config.seed, self._simulated)
        why = why_nothing_was_learned(self._store)
        return replace(made, sentence=f"{made.sentence} {why}") if why else made

    def _write_policy(self, best: State) -> None:
        file = PolicyFile.of(best.parameters, best.standing, self._plan.config)
        file.save(Path(self._store.path) / POLICY)

    def _rows(self, best: State) -> dict[str, Prompter]:
        base, policy = self._plan.config.base_prompt, self._learner.policy
        untrained = state_at(self._store, -1)
        return {
            "present": FixedPrompt(joined(base, self._plan.present_prompt)),
            "concat": FixedPrompt(concat_prompt(base, best)),
            "untrained": Deployed(policy, untrained.parameters, untrained.standing),
            "learned": Deployed(policy, best.parameters, best.standing),
        }

    async def _row(self, name: str, prompter: Prompter) -> Evaluation:
        for known in self._store.judged():
            if known.name == name:
                return known
        test = self._plan.split("test")
        evaluation = await self._evaluator.evaluate(
            name, prompter, test, "test", progress(self._tell, f"judging {name}", len(test))
        )
        refuse_broken(evaluation, f"judging {name}")
        self._store.append(Judged(evaluation))
        return evaluation
