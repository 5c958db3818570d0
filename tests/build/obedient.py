"""An executor that obeys one order, for the experiments with a scripted teacher."""

from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.paper.experiments.teacher import rules_in

ANSWERS = {
    "in Spanish": "Hola, gracias por su mensaje. La factura está en el correo de la tienda.",
    "in Chinese": "您好，我们已经取消了您的订单，谢谢您的来信。",
    "with a Python program": "import os",
}


class Obedient:
    """Does what the last order of the prompt says, if it is able to."""

    async def __call__(self, request: Request) -> Reply:
        assert request.role == "executor", "the other roles are the teacher's"
        orders = [rule.order for rule in rules_in(request.messages[-1].content)]
        return Reply(ANSWERS.get(orders[-1], "?") if orders else "Thank you.", usage=Usage(1, 9, 9))
