//! The processor's control word for floating-point numbers, and what it must be while we compute.
//!
//! A thread inherits the word of the thread that made it, and many libraries change it for the whole process: denormals that
//! count as zero (`torch.set_flush_denormal`, everything compiled with `-ffast-math`), another rounding. Sums and steps would
//! then have other bits than in the next process. So nothing here computes under another word than the architecture's default:
//! round to nearest even, denormals kept, nothing trapped.
//!
//! The language knows no other word: arithmetic under another one is undefined. So the word is changed by an opaque block before
//! the first number is loaded, and back after the last store, around a call that is not inlined.

/// Sets the calling thread's control word to the default, for as long as the thread lives: for threads of our own.
pub fn settle_this_thread() {
    if word::differs(word::read()) {
        word::write(word::DEFAULT);
    }
}

/// Does the work under the default control word, whatever the thread's is.
pub fn settled<T>(work: impl FnOnce() -> T) -> T {
    let _guard = Guard::new();
    apart(work)
}

/// Not to be mixed with what its caller does before and behind it.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// The word that the thread had, to be put back, also by a panic.
struct Guard(Option<word::Word>);

impl Guard {
    #[inline]
    fn new() -> Self {
        let was = word::read();
        if !word::differs(was) {
            return Self(None);
        }
        word::write(word::DEFAULT);
        Self(Some(was))
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if let Some(was) = self.0 {
            word::write(was);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod word {
    //! MXCSR.
    use std::arch::asm;

    pub(crate) type Word = u32;
    pub(crate) const DEFAULT: Word = 0x1f80;
    /// Flags of what has happened since they were last cleared: they do not affect what will.
    const FLAGS: Word = 0x3f;

    #[inline]
    pub(crate) fn differs(word: Word) -> bool {
        word & !FLAGS != DEFAULT
    }

    #[inline]
    pub(crate) fn read() -> Word {
        let mut word = 0;
        // SAFETY: stores 4 bytes to `word`; every x86-64 has the instruction.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(crate) fn write(word: Word) {
        // SAFETY: loads 4 bytes from `word`, which `read` gave or is the default, so no reserved bit is set. What is computed
        // under it: see the module.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(crate) mod word {
    //! FPCR.
    use std::arch::asm;

    pub(crate) type Word = u64;
    pub(crate) const DEFAULT: Word = 0;

    #[inline]
    pub(crate) fn differs(word: Word) -> bool {
        word != DEFAULT
    }

    #[inline]
    pub(crate) fn read() -> Word {
        let word;
        // SAFETY: reads a register that every program may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(crate) fn write(word: Word) {
        // SAFETY: writes a register that every program may write, with what `read` gave or the default. What is computed under
        // it: see the module.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) mod word {
    //! None that we know of.
    pub(crate) type Word = ();
    pub(crate) const DEFAULT: Word = ();

    pub(crate) fn differs((): Word) -> bool {
        false
    }

    pub(crate) fn read() -> Word {}

    pub(crate) fn write((): Word) {}
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// Denormals are zero, results are flushed to zero, rounding is towards zero.
    const OTHER: word::Word = word::DEFAULT | 0x8000 | 0x0040 | 0x6000;

    #[test]
    fn work_is_done_under_the_default_word_and_the_thread_keeps_its_own() {
        word::write(OTHER);
        let during = settled(word::read);
        let after = word::read();
        word::write(word::DEFAULT);
        assert!(!word::differs(during));
        assert_eq!(after & !0x3f, OTHER);
    }

    #[test]
    fn sums_of_short_runs_and_what_a_rule_makes_of_zeros_do_not_depend_on_the_word() {
        let tiny = 1e-39_f32.to_le_bytes();
        let (mut kept, decays) = ([0; 4], crate::Settings([0.1, 0.0, 0.0, 5e-324, 0.0]));
        let rule = crate::Rule::Sgd { momentum: false, nesterov: false, maximize: false };
        word::write(OTHER);
        crate::scatter_add(crate::Dtype::F32, &mut kept, &tiny, [(0..1, 0)]);
        let ignores = rule.ignores_zeros(&decays);
        word::write(word::DEFAULT);
        assert_eq!(kept, tiny);
        assert!(!ignores, "it decays, if by little");
    }

    #[test]
    fn the_thread_keeps_its_own_word_when_the_work_panics() {
        word::write(OTHER);
        let panicked = std::panic::catch_unwind(|| settled(|| panic!("in the middle"))).is_err();
        let after = word::read();
        word::write(word::DEFAULT);
        assert!(panicked);
        assert_eq!(after & !0x3f, OTHER);
    }

    #[test]
    fn a_thread_inherits_the_word_until_it_is_settled() {
        word::write(OTHER);
        let (inherited, settled) = std::thread::scope(|scope| {
            let look = || {
                let inherited = word::read();
                settle_this_thread();
                (inherited, word::read())
            };
            scope.spawn(look).join().unwrap()
        });
        word::write(word::DEFAULT);
        assert_eq!(inherited & !0x3f, OTHER, "else there is nothing to guard against");
        assert!(!word::differs(settled));
    }
}
