/* judge.c - see judge.h. */
#include "judge.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pocketsphinx.h>
#include <sphinxbase/err.h>
#include <sphinxbase/fe.h>

#define MODELS POCKETSPHINX_MODELS "/en-us"
#define PAD 4800 /* samples of quiet before and after, so that the recogniser does not miss an edge: 0.3 s */
#define MOST_WORDS 64

struct judge {
    ps_decoder_t *words, *sentences;
    fe_t *spectrum;
    cmd_ln_t *spectrum_settings;
    char **normal; /* [count] sentences as judge_words writes them */
    int count;
};

/* ---- words ------------------------------------------------------------------------------------------------------------------- */

void judge_words(const char *text, char *out, size_t capacity)
{
    size_t n = 0;
    int blank = 1;
    while (*text != '\0' && n + 2 < capacity) {
        if (strncmp(text, "<|", 2) == 0 && strstr(text, "|>") != NULL) {
            text = strstr(text, "|>") + 2;
            continue;
        }
        int letter = isalpha((unsigned char)*text) || *text == '\'';
        if (letter) {
            if (blank && n > 0) out[n++] = ' ';
            out[n++] = (char)tolower((unsigned char)*text);
        }
        blank = !letter;
        text++;
    }
    out[n] = '\0';
}

/* Cuts `copy` at its blanks. */
static int cut(char *copy, char **words)
{
    int n = 0;
    for (char *rest = NULL, *word = strtok_r(copy, " ", &rest); word != NULL && n < MOST_WORDS; word = strtok_r(NULL, " ", &rest))
        words[n++] = word;
    return n;
}

int judge_word_errors(const char *want, const char *heard, int *total)
{
    char a[1024], b[1024], *wanted[MOST_WORDS], *got[MOST_WORDS];
    int row[MOST_WORDS + 1];
    snprintf(a, sizeof a, "%s", want);
    snprintf(b, sizeof b, "%s", heard);
    int m = cut(a, wanted), n = cut(b, got);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; i <= m; i++) {
        int before = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int swap = before + (strcmp(wanted[i - 1], got[j - 1]) != 0), gap = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            before = row[j];
            row[j] = swap < gap ? swap : gap;
        }
    }
    *total = m;
    return row[n] < m ? row[n] : m;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------------- */

static ps_decoder_t *decoder(const char *language_model)
{
    cmd_ln_t *settings = cmd_ln_init(NULL, ps_args(), TRUE, "-hmm", MODELS "/en-us", "-dict", MODELS "/cmudict-en-us.dict", NULL);
    if (settings == NULL) return NULL;
    if (language_model != NULL)
        cmd_ln_set_str_r(settings, "-lm", language_model);
    else
        cmd_ln_set_boolean_r(settings, "-remove_silence", FALSE); /* times of words need every frame */
    ps_decoder_t *made = ps_init(settings);
    cmd_ln_free_r(settings);
    return made;
}

/* #JSGF: the whole of one sentence, or of another one. */
static int set_grammar(struct judge *judge)
{
    size_t bytes = 100;
    for (int i = 0; i < judge->count; i++) bytes += strlen(judge->normal[i]) + 3;
    char *grammar = malloc(bytes);
    if (grammar == NULL) return 0;
    size_t n = (size_t)sprintf(grammar, "#JSGF V1.0;\ngrammar sentences;\npublic <sentence> = ");
    for (int i = 0; i < judge->count; i++) n += (size_t)sprintf(grammar + n, "%s%s", i > 0 ? " | " : "", judge->normal[i]);
    sprintf(grammar + n, ";\n");
    int set = ps_set_jsgf_string(judge->sentences, "sentences", grammar) == 0 && ps_set_search(judge->sentences, "sentences") == 0;
    free(grammar);
    return set;
}

/* A word that the dictionary lacks would quietly make its sentence impossible. */
static int knows_all(const struct judge *judge)
{
    for (int i = 0; i < judge->count; i++) {
        char copy[1024], *words[MOST_WORDS];
        snprintf(copy, sizeof copy, "%s", judge->normal[i]);
        int n = cut(copy, words);
        for (int k = 0; k < n; k++) {
            char *phones = ps_lookup_word(judge->sentences, words[k]);
            if (phones == NULL) fprintf(stderr, "the recogniser does not know '%s' of sentence %d\n", words[k], i + 1);
            if (phones == NULL) return 0;
            ckd_free(phones);
        }
    }
    return 1;
}

static int take_sentences(struct judge *judge, char *const *sentences, int count)
{
    judge->normal = calloc((size_t)count, sizeof *judge->normal);
    if (judge->normal == NULL) return 0;
    for (; judge->count < count; judge->count++) {
        char normal[1024];
        judge_words(sentences[judge->count], normal, sizeof normal);
        judge->normal[judge->count] = strdup(normal);
        if (judge->normal[judge->count] == NULL) return 0;
    }
    return 1;
}

struct judge *judge_open(char *const *sentences, int count)
{
    struct judge *judge = calloc(1, sizeof *judge);
    if (judge == NULL) return NULL;
    err_set_logfp(NULL);
    judge->words = decoder(MODELS "/en-us.lm.bin");
    judge->sentences = decoder(NULL);
    judge->spectrum_settings = cmd_ln_init(NULL, fe_get_args(), TRUE, "-samprate", "16000", "-nfilt", "40", "-lowerf", "100",
                                           "-upperf", "7600", "-ncep", "19", "-remove_noise", "no", "-remove_silence", "no", NULL);
    if (judge->spectrum_settings != NULL) judge->spectrum = fe_init_auto_r(judge->spectrum_settings);
    if (judge->words == NULL || judge->sentences == NULL || judge->spectrum == NULL)
        fprintf(stderr, "no recogniser: are Debian's pocketsphinx-en-us models in " MODELS "?\n");
    else if (take_sentences(judge, sentences, count) && knows_all(judge) && set_grammar(judge))
        return judge;
    judge_close(judge);
    return NULL;
}

void judge_close(struct judge *judge)
{
    if (judge == NULL) return;
    if (judge->words != NULL) ps_free(judge->words);
    if (judge->sentences != NULL) ps_free(judge->sentences);
    if (judge->spectrum != NULL) fe_free(judge->spectrum);
    if (judge->spectrum_settings != NULL) cmd_ln_free_r(judge->spectrum_settings);
    for (int i = 0; i < judge->count; i++) free(judge->normal[i]);
    free(judge->normal);
    free(judge);
}

/* ---- listening --------------------------------------------------------------------------------------------------------------- */

/* Each utterance on its own: the stream starts anew, so that the mean of the cepstra does not come from the one before. */
static int decode(ps_decoder_t *decoder, const int16_t *pcm, size_t count, char *out, size_t capacity)
{
    if (ps_start_stream(decoder) != 0 || ps_start_utt(decoder) != 0) return 0;
    if (ps_process_raw(decoder, pcm, count, FALSE, TRUE) < 0 || ps_end_utt(decoder) != 0) return 0;
    const char *heard = ps_get_hyp(decoder, NULL);
    judge_words(heard != NULL ? heard : "", out, capacity);
    return 1;
}

static double last_word(ps_decoder_t *decoder)
{
    int last = 0;
    for (ps_seg_t *part = ps_seg_iter(decoder); part != NULL; part = ps_seg_next(part)) {
        int from, to;
        ps_seg_frames(part, &from, &to);
        if (isalpha((unsigned char)ps_seg_word(part)[0])) last = to + 1;
    }
    return last / 100.0 - (double)PAD / JUDGE_RATE;
}

/* The mean cepstra of the louder half of the 10 ms frames. */
static int average(mfcc_t **cepstra, int frames, double timbre[JUDGE_TIMBRE])
{
    double level = 0;
    int kept = 0;
    for (int t = 0; t < frames; t++) level += (double)cepstra[t][0] / frames;
    memset(timbre, 0, JUDGE_TIMBRE * sizeof *timbre);
    for (int t = 0; t < frames; t++) {
        if ((double)cepstra[t][0] < level) continue;
        kept++;
        for (int c = 0; c < JUDGE_TIMBRE; c++) timbre[c] += (double)cepstra[t][c + 1];
    }
    for (int c = 0; c < JUDGE_TIMBRE; c++) timbre[c] /= kept > 0 ? kept : 1;
    return kept > 0;
}

static int measure_timbre(struct judge *judge, const int16_t *pcm, size_t count, double timbre[JUDGE_TIMBRE])
{
    mfcc_t **cepstra = NULL;
    int32 frames = 0;
    fe_start_stream(judge->spectrum);
    if (fe_start_utt(judge->spectrum) != 0 || fe_process_utt(judge->spectrum, pcm, count, &cepstra, &frames) != 0) return 0;
    mfcc_t rest[JUDGE_TIMBRE + 1];
    int32 more = 0;
    int good = fe_end_utt(judge->spectrum, rest, &more) == 0 && average(cepstra, frames, timbre);
    fe_free_2d(cepstra);
    return good;
}

int judge_listen(struct judge *judge, const int16_t *pcm, size_t count, struct judge_verdict *verdict)
{
    char sentence[1024];
    int16_t *padded = calloc(count + 2 * PAD, sizeof *padded);
    if (padded == NULL) return 0;
    memcpy(padded + PAD, pcm, count * sizeof *padded);
    int good = decode(judge->words, padded, count + 2 * PAD, verdict->words, sizeof verdict->words) &&
               decode(judge->sentences, padded, count + 2 * PAD, sentence, sizeof sentence) &&
               measure_timbre(judge, pcm, count, verdict->timbre);
    free(padded);
    if (!good) return 0;
    verdict->picked = -1;
    for (int i = 0; i < judge->count; i++)
        if (strcmp(judge->normal[i], sentence) == 0) verdict->picked = i;
    verdict->last_word = last_word(judge->sentences);
    return 1;
}
