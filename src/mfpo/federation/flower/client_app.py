"""The Flower app on an agent's machine: it carries a message to the warm agent, and the answer back.

Flower starts it anew for every message, so it uses nothing but Flower and the standard library.
"""

from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .frames import FRAME, carry

app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Which agent is there."""
    return _forward(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local steps."""
    return _forward(message, context)


def _forward(message: Message, context: Context) -> Message:
    question = message.content.array_records[FRAME][FRAME].data
    answer = carry(Path(str(context.node_config["socket"])), question, max(message.metadata.ttl, 1.0))
    record = ArrayRecord({FRAME: Array("uint8", (len(answer),), "raw", answer)})
    return Message(RecordDict({FRAME: record}), reply_to=message)
