// Package restart decides what is done about failures. It is pure: it takes what is known as values
// and returns values, and reads no clock, no file and no chance.
//
// Policy is what the job asks for, Ledger what has been spent, Decide turns a batch of failures into
// one Decision (an action, the set of roles it touches, the rule that settled it, and why), and
// Plans turns a decision into moves. What carries moves out is package engine. Whoever decides has the
// ledger age first (Ledger.Aged). Explain says why the table decides as it does, and Replay has the
// failures of a run that is over happen again under another policy.
package restart
