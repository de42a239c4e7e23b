#!/bin/sh
# The server from the command line. Start it first: build/release/thespis serve
set -eu
B=${1:-http://localhost:8080}

# A whole file; the same seed gives the same bytes.
curl -sSf "$B/v1/audio/speech" -H 'Content-Type: application/json' \
    -d '{"model":"drama-3","voice":"alloy","input":"Good morning.","response_format":"wav","seed":7}' -o morning.wav

# Speech as it is made. Pipe it into a player: | aplay -f S16_LE -r 44100
curl -sSfN "$B/v1/audio/speech" -H 'Content-Type: application/json' \
    -d '{"model":"drama-3","voice":"alloy","input":"As it is made.","response_format":"pcm","sample_rate":44100,"stream":true}' -o made.pcm

# A voice under a name, from a recording and its words.
curl -sSf "$B/v1/audio/voices" -F name=morning -F consent=yes -F ref_text='Good morning.' -F audio_sample=@morning.wav
echo
curl -sSf "$B/v1/audio/speech" -H 'Content-Type: application/json' \
    -d '{"model":"drama-3","voice":"morning","input":"And good night.","response_format":"mp3"}' -o night.mp3
curl -sSf -X DELETE "$B/v1/audio/voices/morning"
echo
ls -l morning.wav made.pcm night.mp3
