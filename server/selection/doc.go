// Package selection chooses between several models behind one name, combines their answers, and
// learns from feedback. A policy is a set of pure functions over a state: the caller keeps the
// state, for one key (application, user), in any store.
//
//	        state, random number             state                      state
//	                 |                         |                          |
//	request --> Policy.Select -> Plan -> Policy.Combine -> Answer   Policy.Feedback -> new state
//	                              |            |                      ^      ^
//	                              |            +-- Predictions -------+      |
//	                              +-- Asks, with probabilities       Outcome: truth or losses
//
// # Policies
//
//	name            parameters (default)            learns              when
//	single          model (the only candidate)      nothing             one model is enough
//	split           weights (equal), salt ("")      nothing             canary, A/B test; a user
//	                                                                    stays with a model
//	shadow          model (the only candidate),     nothing             to watch a candidate on
//	                fraction (1)                                        real requests
//	exp3            gamma (0.05), eta (0.2),        weight, from the    one model per request;
//	                share (0.001), inherit (0.5)    loss of the model   nothing is known about
//	                                                asked               how losses arise
//	exp4            eta (0.2), share (0.001),       weights, from the   all models can be asked;
//	                inherit (0.5),                  losses of all       the best model changes
//	                combination ("vote")            models              over time
//	epsilon-greedy  epsilon (0.1), inherit (0.5)    mean loss of the    one model per request; the
//	                                                model asked         best so far, and sometimes
//	                                                                    another
//	thompson        decay (0.995), inherit (0.5)    belief in the       one model per request;
//	                                                model asked         explores at the least cost
//	                                                                    of the three
//	ensemble        combination ("vote"),           weights, from the   all models can be asked,
//	                weights (learned),              losses of all       and their errors are
//	                classes (2), inherit (0.5)      models              independent
//
// single, split and shadow show mean losses, although they learn nothing from them.
//
// Every policy has these parameters as well:
//
//	output ("")   name of the output that is voted on and judged; "" is the first output
//	loss          "label" (right or wrong, by rows), "absolute" or "squared" (of numbers); the
//	              default is "label", and with combination "mean" "absolute"
//	scale (1)     the difference that is a loss of 1, in the unit of the output, for absolute
//	              and squared loss
//	step          least weight of the newest loss in the mean loss of a model: 0 is the mean of
//	              all losses, 0.01 that of about the last 100. The default is 0 for single, split
//	              and shadow, and 0.01 for all other policies
//
// The weight of a version is that of "name/version", else of its origin (the first version that it
// descends from), else of "name", else 0. Parameter model names models in the same way.
//
// A loss is a number from 0 (best) to 1, without a unit; a reward r is a loss of 1-r. Shares,
// probabilities and confidence are from 0 to 1. No policy uses time: forgetting happens per
// feedback.
//
// # Models that come, go and change
//
//	                new model starts with                   new version starts with, for inherit h
//	single, shadow  nothing                                 nothing: no inherited mean loss
//	split           no users, until weights name it         nothing; its predecessor's users stay
//	exp3, exp4      the mean of the other models' weights   its predecessor's weight^h times
//	                                                        that mean^(1-h)
//	epsilon-greedy  the mean of the other models' mean      its predecessor's mean loss, as the
//	                losses, as one loss                     mean of h times as many losses
//	thompson        no belief                               h of its predecessor's evidence
//	ensemble        like epsilon-greedy                     like epsilon-greedy
//
// When a model joins or leaves, the other models keep what they have, relative to each other. What
// was learned about a model that leaves is set aside (State.Aside) and restored when it returns,
// whether it was linked again, rolled back, or is the version that another server sees during a
// rolling update: so a version inherits once. The state of another policy is kept as well
// (State.Others), for when the application returns to that policy.
//
// # Rules
//
// Nothing here has a clock, a lock, a goroutine, memory of its own or a source of randomness: the
// caller passes a random number, a fresh one for each request. Functions may be called from any
// goroutine. They change no state that they are given, and equal arguments give equal results. So a
// store needs only a compare-and-swap around Feedback to lose no feedback, and a decision that was
// recorded with its random number can be reproduced.
//
// Tensor arguments are read and never retained; see Answer for returned tensors.
//
// Numbers in a state stay finite after any number of feedbacks: weights are logarithms relative to
// the heaviest.
//
// # Policies of your own
//
// Register adds an Algorithm under a name of its own, with its parameters: applications then name
// it like any other policy, at every door and on the admin door, and its state is stored and shared
// like any other policy's. See the package's example.
package selection
