"""The Flower app on an agent's machine: it carries a message to the warm agent, and the answer back.

Flower starts it anew for every message, so it uses nothing but Flower and the standard library.
"""

from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .frames import Entry, Frame, call

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
    records = message.content
    envelope = dict(records.config_records.get("envelope", ConfigRecord()))
    groups = {
        group: {name: Entry(x.dtype, tuple(x.shape), x.data) for name, x in record.items()}
        for group, record in records.array_records.items()
    }
    question = Frame({name: x for name, x in envelope.items() if isinstance(x, str | int | float | bool)}, groups)
    answer = call(Path(str(context.node_config["socket"])), question, max(message.metadata.ttl, 1.0))
    content = RecordDict({"envelope": ConfigRecord(dict(answer.envelope))})
    for group, entries in answer.groups.items():
        content[group] = ArrayRecord({name: Array(x.dtype, x.shape, "raw", x.data) for name, x in entries.items()})
    return Message(content, reply_to=message)
