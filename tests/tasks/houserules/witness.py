"""A reply that keeps given house rules at once, as a clever model would write it."""

from collections.abc import Iterable

LANGUAGES = {
    "russian": "Мы удалили ваш адрес из списка и больше не будем писать вам никаких писем",
    "spanish": "No se preocupe, la factura es para usted y la enviamos hoy por correo a la "
    "dirección que nos ha dado para los documentos de su casa",
    "french": "Nous sommes dans la rue du port et vous pouvez nous voir avec votre chien",
    "japanese": "まず大きな板を立てて、それからねじを四つゆっくりと締めてそのあと扉を付けます",
    "chinese": "您的订单已经取消，我们会在三天内把钱退还给您，请不要担心，欢迎您随时再来看看",
}
PARTS = {
    "html": "<p>Gone.</p>",
    "story": "Once upon a time",
    "letter": "Dear customer,",
    "dialogue": "Customer: Where?\nClerk: Here.",
    "recipe": "Ingredients:\n- one box",
    "emoji": "🙂",
    "python": "import this",
    "json": '{"street": "new", "town": "old"}',
}


def witness(kinds: Iterable[str]) -> str:
    """One reply for all the kinds. Raises ValueError for two languages at once."""
    wanted = list(kinds)
    parts = [PARTS[kind] for kind in wanted if kind in PARTS]
    parts += [LANGUAGES[kind] for kind in wanted if kind in LANGUAGES]
    if sum(kind in LANGUAGES for kind in wanted) > 1:
        raise ValueError(f"{' and '.join(wanted)} cannot be kept together")
    if "one_sentence" not in wanted:
        return "\n".join(parts) or "Good to hear that."
    end = "。" if "japanese" in wanted else "."
    said = [part for part in parts if len(part) > 1] or ["The new lid is on its way to you"]
    return " ".join([*(part for part in parts if len(part) == 1), *said]) + end
