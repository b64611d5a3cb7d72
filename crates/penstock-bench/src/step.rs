//! `w -= lr * (g0 + g1 + ...)` in one pass, as plainly as a compiler can vectorize it.
//!
//! Each gradient is read once, the parameters are read once and written once. Up to eight gradients are summed in registers (nine
//! streams with the parameters, as many as prefetchers follow well); more are summed one after the other, block by block, into
//! sums that stay in the first-level cache.

/// Floats of a block of sums: 8 KiB, a quarter of the smallest first-level cache.
const BLOCK: usize = 2048;

/// One step of plain SGD over `w`, by the widest vectors of this machine. All slices have equal length.
pub(crate) fn sgd(w: &mut [f32], gradients: &[&[f32]], lr: f32) {
    assert!(gradients.iter().all(|g| g.len() == w.len()), "gradients are as long as the parameters");
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has AVX-512F (checked).
            return unsafe { sgd_avx512(w, gradients, lr) };
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2 (checked).
            return unsafe { sgd_avx2(w, gradients, lr) };
        }
    }
    any(w, gradients, lr);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sgd_avx512(w: &mut [f32], gradients: &[&[f32]], lr: f32) {
    any(w, gradients, lr);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sgd_avx2(w: &mut [f32], gradients: &[&[f32]], lr: f32) {
    any(w, gradients, lr);
}

/// Picks the loop for this many gradients. Inlined, with everything below, into each variant above.
#[inline(always)]
fn any(w: &mut [f32], gradients: &[&[f32]], lr: f32) {
    match *gradients {
        [] => {}
        [a] => fixed(w, [a], lr),
        [a, b] => fixed(w, [a, b], lr),
        [a, b, c] => fixed(w, [a, b, c], lr),
        [a, b, c, d] => fixed(w, [a, b, c, d], lr),
        [a, b, c, d, e] => fixed(w, [a, b, c, d, e], lr),
        [a, b, c, d, e, f] => fixed(w, [a, b, c, d, e, f], lr),
        [a, b, c, d, e, f, g] => fixed(w, [a, b, c, d, e, f, g], lr),
        [a, b, c, d, e, f, g, h] => fixed(w, [a, b, c, d, e, f, g, h], lr),
        _ => blocked(w, gradients, lr),
    }
}

/// `N` gradients, summed in registers.
#[inline(always)]
fn fixed<const N: usize>(w: &mut [f32], gradients: [&[f32]; N], lr: f32) {
    let gradients = gradients.map(|g| &g[..w.len()]);
    for (i, w) in w.iter_mut().enumerate() {
        let mut sum = gradients[0][i];
        for g in &gradients[1..] {
            sum += g[i];
        }
        *w -= lr * sum;
    }
}

/// Any number of gradients, summed block by block.
#[inline(always)]
fn blocked(w: &mut [f32], gradients: &[&[f32]], lr: f32) {
    let mut sums = [0.0; BLOCK];
    for (block, w) in w.chunks_mut(BLOCK).enumerate() {
        let sums = &mut sums[..w.len()];
        sums.fill(0.0);
        for g in gradients {
            for (sum, g) in sums.iter_mut().zip(&g[block * BLOCK..]) {
                *sum += g;
            }
        }
        for (w, sum) in w.iter_mut().zip(sums) {
            *w -= lr * *sum;
        }
    }
}
