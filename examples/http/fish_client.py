"""Fish Audio's own client. pip install fish-audio-sdk; python fish_client.py [http://localhost:8080]"""

import sys

from fishaudio import FishAudio
from fishaudio.types import ReferenceAudio

base = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080"
client = FishAudio(api_key="any key, unless the server was given some", base_url=base)

# A whole MP3, which is this client's default.
with open("morning.mp3", "wb") as file:
    file.write(client.tts.convert(text="Good morning."))

# Speech as it is made, in the voice of a recording.
recording = client.tts.convert(text="The stage is set.", format="wav")
with open("night.wav", "wb") as file:
    for piece in client.tts.stream(
        text="And good night.", format="wav", references=[ReferenceAudio(audio=recording, text="The stage is set.")]
    ):
        file.write(piece)
