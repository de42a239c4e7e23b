/* judge.h - who listens in the quality test: pocketsphinx with its own language model (which words?), the same with a grammar of
 * whole sentences (which of them?), and the long-term spectrum (whose voice?). All of it from Debian's packages; nothing here is
 * trained. */
#ifndef TESTS_QUALITY_JUDGE_H
#define TESTS_QUALITY_JUDGE_H

#include <stddef.h>
#include <stdint.h>

#define JUDGE_RATE 16000
#define JUDGE_TIMBRE 18 /* cepstra 1 to 18 */

struct judge; /* one a thread */

struct judge_verdict {
    char words[1024]; /* heard with the language model */
    int picked;       /* number of the sentence that the grammar chose, -1: none */
    double last_word; /* seconds from the start to the end of its last word */
    double timbre[JUDGE_TIMBRE];
};

/* NULL when a model is missing or a sentence has a word that the recogniser does not know; why is told on standard error. */
struct judge *judge_open(char *const *sentences, int count);
void judge_close(struct judge *judge);

/* pcm: mono, JUDGE_RATE. Returns 0 when the recogniser failed. */
int judge_listen(struct judge *judge, const int16_t *pcm, size_t count, struct judge_verdict *verdict);

/* The words of a text, lower case, one blank between them; tags are no words. */
void judge_words(const char *text, char *out, size_t capacity);
/* Number of words of `want`, and how many of them `heard` lacks or has wrong (insertions count too; never more than there are). */
int judge_word_errors(const char *want, const char *heard, int *total);

#endif
