/* faults.h - planted mistakes, so that tests can show that the checks would find them. A build with TH_PLANT has mistake
 * th_planted_fault while a test sets it; every other build has none and compiles the conditions away.
 *
 *     1 backbone q_proj read as [all queries, all gates]      8 decode leaves the newest input out of the convolution's state
 *     2 backbone rope on pairs (2i, 2i+1)                     9 the tower's extra input not masked on text rows
 *     3 tower rope on pairs (i, i + half)                    10 tower labels taken from the row's own frame
 *     4 backbone k_norm multiplies by w, not 1 + w           11 value head j reads key head j mod key heads
 *     5 one expert fewer                                     13 beta not rounded
 *     6 up rows take the gate rows' scales                   14 the last prompt row's tower keys stay those of a placeholder
 *     7 attention gate applied after o_proj */
#ifndef THESPIS_BACKEND_CPU_FAULTS_H
#define THESPIS_BACKEND_CPU_FAULTS_H

#ifdef TH_PLANT
extern int th_planted_fault; /* lm.c; a test's alone */
#define TH_FAULT_IS(n) (th_planted_fault == (n))
#else
#define TH_FAULT_IS(n) 0
#endif

#endif
