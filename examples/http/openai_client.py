"""The official OpenAI client. pip install openai; python openai_client.py [http://localhost:8080]"""

import base64
import json
import sys

from openai import BadRequestError, OpenAI

base = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080"
client = OpenAI(base_url=base + "/v1", api_key="any key, unless the server was given some")

# A whole MP3.
client.audio.speech.create(model="drama-3", voice="alloy", input="Good morning.").write_to_file("morning.mp3")

# Written while it is being made. Fields that OpenAI does not have go in extra_body.
with client.audio.speech.with_streaming_response.create(
    model="drama-3", voice="alloy", input="As it is made.", response_format="flac", extra_body={"seed": 7}
) as answer:
    answer.stream_to_file("made.flac")
    print("seed", answer.headers["x-seed"])

# Events: 16-bit samples in base64, at 24 kHz as this interface's clients expect.
audio = b""
with client.audio.speech.with_streaming_response.create(
    model="drama-3", voice="alloy", input="In pieces.", stream_format="sse"
) as answer:
    for line in answer.iter_lines():
        event = json.loads(line.removeprefix("data: ")) if line else {"type": ""}
        if event["type"] == "speech.audio.delta":
            audio += base64.b64decode(event["audio"])
        elif event["type"] == "speech.audio.done":
            print(f"{len(audio) / 2 / 24000:.2f} s", event["usage"])

# What is wrong is said, and where.
try:
    client.audio.speech.create(model="drama-3", voice="nobody", input="Hello.")
except BadRequestError as error:
    print(error.param, "-", error.message)
