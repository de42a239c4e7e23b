/* commands.c - the list of commands with their help. */
#include "cli/options.h"

const struct cli_command cli_commands[] = {
    {"speak", CLI_SPEAK, "speak [options] [TEXT]", "say a text, in the voice of a recording if you like",
     "Says TEXT, or what stands in --text-file, or standard input, and writes the audio\n"
     "while it is being made. <|speaker:0|> to <|speaker:15|> in the text change the\n"
     "speaker; cues go in brackets: [sighs], [whispers].",
     "  thespis speak \"Good morning.\"\n"
     "  thespis speak --ref anna.wav --ref-text \"What Anna says there.\" --out hi.wav \"Hi, it is me.\"\n"
     "  fortune | thespis speak --format pcm --out - | aplay -f S16_LE -r 44100\n",
     cli_speak},
    {"serve", CLI_SERVE, "serve [options]", "an HTTP server that OpenAI's and Fish's clients know",
     "Answers POST /v1/audio/speech, POST /v1/tts and their kin until SIGTERM or Ctrl-C,\n"
     "which it takes as a wish to end well; a second one ends at once. SIGHUP reads the\n"
     "file of API keys again. docs/serving.md is the manual, docs/api.md the interface.",
     "  thespis serve --port 8080\n"
     "  curl localhost:8080/v1/audio/speech -H 'Content-Type: application/json' \\\n"
     "      -d '{\"input\":\"Hello there.\",\"response_format\":\"wav\"}' -o hello.wav\n",
     cli_serve},
    {"voice", CLI_VOICE | CLI_SPEAK, "voice add|list|show|remove|say [options] [NAME] [TEXT]",
     "keep voices under names, and speak with them",
     "add NAME --ref FILE --ref-text TEXT ...   encode recordings and keep them as a voice\n"
     "list                                      the voices there are\n"
     "show NAME                                 what a voice is made of\n"
     "remove NAME                               forget a voice and its recordings\n"
     "say NAME TEXT                             speak --voice NAME TEXT, with speak's options\n"
     "\n"
     "NAME has letters, digits, blanks and _ . - in it; upper and lower case are the same.\n"
     "A recording has 0.5 to 60 seconds and at most 10 MiB.",
     "  thespis voice add anna --ref anna.wav --ref-text \"What Anna says there.\" --language en\n"
     "  thespis voice say anna \"Hi, it is me.\" --out hi.wav\n"
     "  thespis speak --voice anna --seed 7 \"Hi again.\"\n",
     cli_voice},
    {"encode", CLI_ENCODE, "encode [options] RECORDING", "turn a recording into codec codes",
     "Encodes a recording of any usual format, rate and channel count: 21.53 frames a\n"
     "second, one code for each codebook. Needs only the codec.",
     "  thespis encode --codec codec.pth anna.wav --out anna.npy\n", cli_encode},
    {"decode", CLI_DECODE, "decode [options] CODES", "turn codec codes into audio",
     "Decodes a .npy or .json of codes: 2,048 samples a frame. Needs only the codec.",
     "  thespis decode --codec codec.pth anna.npy --out anna-again.wav\n", cli_decode},
    {"inspect", CLI_INSPECT, "inspect checkpoint|tokens|prompt|chunks|recording|codes|voice [options] [TEXT|FILE|NAME]",
     "look at a checkpoint, a text, a recording, codes or a voice",
     "checkpoint [DIR]   the model's numbers and tensors, after all checks\n"
     "tokens TEXT        the ids of one segment of text\n"
     "prompt TEXT        the segments and rows that TEXT becomes\n"
     "chunks TEXT        where a long TEXT is cut\n"
     "recording FILE     rate, length, loudness and spectrogram\n"
     "codes FILE         a .npy or .json of codes, and their picture\n"
     "voice NAME|FILE    what a voice is made of, and its codes",
     "  thespis inspect checkpoint models/stage\n"
     "  thespis inspect recording anna.wav --plot anna.png\n"
     "  thespis inspect tokens --json \"Hello there.\"\n",
     cli_inspect},
    {"check", CLI_CHECK, "check CHECKPOINT REQUEST.json [options] | check kernels [list]",
     "compare the network with the reference, value by value",
     "Runs a request over forced frames and writes every layer's output under the names\n"
     "that tools/oracle uses; compares with such a folder. With --codec: the codec.\n"
     "kernels: the promises of the CUDA backend's kernels, on --device; list: their sizes.",
     "  thespis check CKPT request.json --no-act-quant --frames labels.npy --out ours --against oracle\n", cli_check},
    {"convert", CLI_CONVERT, "convert codec codec.pth codec.safetensors", "rewrite the codec's file so that it maps at once",
     "Folds the weights of a codec.pth and writes them as codec.safetensors, which every\n"
     "command accepts in its place.",
     NULL, cli_convert},
    {"bench", CLI_BENCH, "bench [options]", "measure how fast this machine speaks",
     "Rates of the parts, each the median of five runs: generation at 1 to 8 lanes after\n"
     "200 rows of context, prefill, codec. --json writes what bench/results keeps.",
     NULL, cli_bench},
    {0},
};
