#!/bin/sh
# Trains the small checkpoint in stages that each fit a short GPU run, from one command and unattended.
#
#     tools/stage/train.sh kit KIT                    packs what a machine without a network needs: flite, WordNet, dictionary (about 21 MiB)
#     tools/stage/train.sh run KIT OUT [EARLIER]      the stages that are neither in OUT nor in EARLIER, in order: codec-1 codec-2 codec-3
#                                                     lm-1 lm-2 checkpoint
#     tools/stage/train.sh one STAGE KIT OUT [EARLIER]     that one alone
#     tools/stage/train.sh voices CHECKPOINT KIT PROGRAM   the built-in voices' codes for a new codec
#
# A stage that ends well leaves OUT/STAGE/done; weights alone go from stage to stage, every file is under 16 MiB, and EARLIER is an OUT of
# before, carried back in. Speech and codes are made anew where they are needed (a minute): they stay on the machine, in SCRATCH.
# From the environment: SECONDS_EACH (430), FRESH=1 (a codec from nothing instead of the shipped one), SCRATCH (/dev/shm/stage),
# PYTHON (python3), WORKERS (14), TINY=1 (a few steps on the CPU: a dry run).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
each=${SECONDS_EACH:-430}
workers=${WORKERS:-14}
scratch=${SCRATCH:-/dev/shm/stage}
schedule="--gan-from 0.7 --freeze-from 0.86 --lr 9e-4"

kit() {
    mkdir -p "$1"
    (cd "$1" && apt-get download -q flite libflite1 libasound2 wordnet-base)
    dictionary=$("$python" -c 'import pocketsphinx; print(pocketsphinx.get_model_path("en-us/cmudict-en-us.dict"))')
    gzip -9 -c "$dictionary" >"$1/dictionary.gz"
    echo "$1: $(du -sm "$1" | cut -f1) MiB"
}

# flite in $scratch/root, sentences in $scratch/text, tokenizer in $scratch/tokenizer.json
unpack() {
    [ -f "$scratch/tokenizer.json" ] && return
    mkdir -p "$scratch/root"
    for deb in "$1"/*.deb; do dpkg -x "$deb" "$scratch/root"; done
    gzip -dc "$1/dictionary.gz" >"$scratch/dictionary"
    "$python" "$here/make_text.py" --wordnet "$scratch/root/usr/share/wordnet" --dictionary "$scratch/dictionary" --out "$scratch/text"
    "$python" "$here/check_unseen.py" --text "$scratch/text"
    "$python" "$here/make_tokenizer.py" --text "$scratch/text" --out "$scratch/tokenizer.json"
}

# Where a stage's results are: in OUT or EARLIER, or nowhere.
found() {
    for place in "$out" "$earlier"; do
        if [ -n "$place" ] && [ -f "$place/$1/done" ]; then
            echo "$place/$1"
            return
        fi
    done
}

need() {
    [ -n "$(found "$1")" ] || { echo "train.sh: $2 needs the results of $1 in OUT or EARLIER" >&2; exit 1; }
    found "$1"
}

codec_stage() { # name, from, to, the stage before
    from=""
    if [ -n "$4" ]; then
        before=$(need "$4" "$1")
        from="--init $before/codec-live.pth --heads $before/codec-heads.pth"
    elif [ -z "${FRESH:-}" ]; then
        from="--init $here/../../models/stage/codec.pth"
    fi
    dry=""
    [ -z "${TINY:-}" ] || dry="--device cpu --tiny --steps 4"
    # shellcheck disable=SC2086
    "$python" "$here/train_codec.py" --flite "$scratch/root" --text "$scratch/text" --shards "$scratch/shards" --out "$out/$1" --workers "$workers" \
        --seconds "$each" --span "$2" "$3" $schedule $from $dry
}

lm_stage() { # name, from, to, the stage before
    codec=$(need codec-3 "$1")/codec-ema.pth
    if [ ! -f "$scratch/codes/codes.npz" ]; then
        dry=""
        [ -z "${TINY:-}" ] || dry="--device cpu --limit 40 --held 2 --hours 0.2 --samples 400000"
        # shellcheck disable=SC2086
        "$python" "$here/encode.py" --flite "$scratch/root" --text "$scratch/text" --codec "$codec" --shards "$scratch/shards${TINY:+-tiny}" \
            --workers "$workers" --out "$scratch/codes" $dry
    fi
    from=""
    [ -z "$4" ] || from="--init $(need "$4" "$1")"
    dry=""
    [ -z "${TINY:-}" ] || dry="--device cpu --batch 2 --max-steps 3 --workers 0"
    # shellcheck disable=SC2086
    "$python" "$here/train_lm.py" --text "$scratch/text" --codes "$scratch/codes" --tokenizer "$scratch/tokenizer.json" --out "$out/$1" \
        --seconds $((each - 60)) --span "$2" "$3" $from $dry
}

assemble() {
    weights=$(need lm-2 checkpoint)
    mkdir -p "$out/checkpoint"
    cp "$weights"/config.json "$weights"/*.safetensors "$weights"/model.safetensors.index.json "$out/checkpoint"
    cp "$(need codec-3 checkpoint)/codec-ema.pth" "$out/checkpoint/codec.pth"
    cp "$scratch/tokenizer.json" "$here/../../models/stage/codec_sizes.json" "$out/checkpoint"
}

stage() {
    [ -z "$(found "$1")" ] || { echo "$1: already there"; return; }
    echo "== $1"
    rm -rf "${out:?}/$1"
    mkdir -p "$out/$1"
    case $1 in
    codec-1) codec_stage codec-1 0 0.35 "" ;;
    codec-2) codec_stage codec-2 0.35 0.7 codec-1 ;;
    codec-3) codec_stage codec-3 0.7 1 codec-2 ;;
    lm-1) lm_stage lm-1 0 0.5 "" ;;
    lm-2) lm_stage lm-2 0.5 1 lm-1 ;;
    checkpoint) assemble ;;
    *) echo "train.sh: no stage '$1'" >&2; exit 1 ;;
    esac
    large=$(find "$out/$1" -type f -size +16777216c)
    [ -z "$large" ] || { echo "train.sh: over 16 MiB: $large" >&2; exit 1; }
    touch "$out/$1/done"
}

# The words of the built-in voices are in no training text either.
voices() { # checkpoint, kit, program
    unpack "$2"
    while IFS='|' read -r name text; do
        LD_LIBRARY_PATH="$scratch/root/usr/lib/$(uname -m)-linux-gnu" "$scratch/root/usr/bin/flite" -voice "$name" -t "$text" -o "$scratch/$name.wav"
        "$3" encode --checkpoint "$1" --out "$scratch/$name.npy" "$scratch/$name.wav"
        rm -f "$1/voices/$name.safetensors"
        "$3" voice add "$name" --checkpoint "$1" --voices "$1/voices" --ref "$scratch/$name.npy" --ref-text "$text"
    done <<'VOICES'
slt|The bakery on the corner opens at six every morning.
awb|My brother keeps an old bicycle behind the garden wall.
rms|We watched the evening ferry cross the silver bay.
kal16|The librarian found a yellow map inside the heavy book.
VOICES
}

what=${1:-}
[ $# -gt 0 ] && shift
case $what in
kit) kit "$1" ;;
run | one)
    stages="codec-1 codec-2 codec-3 lm-1 lm-2 checkpoint"
    if [ "$what" = one ]; then stages=$1; shift; fi
    mkdir -p "$2" "$scratch"
    out=$(cd "$2" && pwd) earlier=${3:-}
    unpack "$1"
    for s in $stages; do stage "$s"; done
    ;;
voices) voices "$@" ;;
*) sed -n '2,/^set/p' "$0" | grep '^#' | cut -c3-; exit 2 ;;
esac
