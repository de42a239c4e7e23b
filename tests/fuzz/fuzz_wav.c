/* fuzz_wav.c - our own reader of WAV; samples that are accepted are finite and no more than the limit allows. */
#include "fuzz.h"

#include <math.h>

#include "audio/wav.h"

static void fuzz(const uint8_t *data, size_t size)
{
    struct th_wav wav;
    thespis_error error;
    if (!fuzz_told(th_wav_parse(data, size, "recording.wav", 2, &wav, &error), &error)) return;
    if (wav.rate < 1 || wav.channels < 1 || wav.frames > (size_t)wav.rate * 2 + 1) fuzz_bad("wav", "shape");
    for (size_t i = 0; i < wav.frames * (size_t)wav.channels; i++)
        if (!isfinite(wav.samples[i])) fuzz_bad("wav", "a sample that is no number");
    th_free(wav.samples);
}

FUZZ_TARGET
