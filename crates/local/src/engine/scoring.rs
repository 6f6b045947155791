//! What it takes to score many continuations at once.

use llama_cpp_2::token::LlamaToken;

/// Continuations laid over each other. Their last tokens are not part of it: nothing is computed from them.
#[derive(Clone, Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    last: Vec<usize>,
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) token: LlamaToken,
    pub(super) depth: usize,
    parent: Option<usize>,
    /// The branches that go through it, each a sequence of the cache.
    pub(super) leaves: Vec<usize>,
}

impl Tree {
    fn child(&self, parent: Option<usize>, depth: usize, token: LlamaToken) -> Option<usize> {
        self.nodes
            .iter()
            .position(|n| n.parent == parent && n.depth == depth && n.token == token)
    }

    pub(super) fn leaves(&self) -> usize {
        self.last.len()
    }

    /// Adds a continuation. They come in sorted order, so that one that goes on from another comes right after it.
    pub(super) fn insert(&mut self, continuation: &[LlamaToken]) {
        let inner = &continuation[..continuation.len() - 1];
        let mut path: Vec<usize> = Vec::with_capacity(inner.len());
        for (depth, token) in inner.iter().enumerate() {
            let parent = path.last().copied();
            let node = self.child(parent, depth, *token).unwrap_or_else(|| {
                self.nodes.push(Node {
                    token: *token,
                    depth,
                    parent,
                    leaves: Vec::new(),
                });
                self.nodes.len() - 1
            });
            path.push(node);
        }
        let Some(end) = path.last().copied() else { return };
        // A path that ends inside one that is already there needs no branch of its own; one that goes on from the end
        // of another takes over its branch.
        if !self.nodes[end].leaves.is_empty() {
            return;
        }
        let leaf = match self.last.iter().position(|l| path.contains(l)) {
            Some(leaf) => {
                self.last[leaf] = end;
                leaf
            }
            None => {
                self.last.push(end);
                self.last.len() - 1
            }
        };
        for node in path {
            if !self.nodes[node].leaves.contains(&leaf) {
                self.nodes[node].leaves.push(leaf);
            }
        }
    }

    /// The nodes after which each token of a continuation but the first stands.
    pub(super) fn path(&self, continuation: &[LlamaToken]) -> Vec<usize> {
        let mut parent = None;
        let mut path = Vec::new();
        for (depth, token) in continuation[..continuation.len() - 1].iter().enumerate() {
            let Some(node) = self.child(parent, depth, *token) else {
                break;
            };
            path.push(node);
            parent = Some(node);
        }
        path
    }
}

/// Log-probabilities from logits.
pub struct LogSoftmax<'l> {
    logits: &'l [f32],
    normaliser: f64,
}

impl<'l> LogSoftmax<'l> {
    /// Computes the normaliser once.
    pub fn new(logits: &'l [f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|l| (l - max).exp()).sum();
        Self {
            logits,
            normaliser: f64::from(max) + f64::from(sum).ln(),
        }
    }

    /// The log-probability of a token.
    pub fn of(&self, token: LlamaToken) -> f64 {
        let logit = usize::try_from(token.0).ok().and_then(|i| self.logits.get(i));
        logit.map_or(f64::NEG_INFINITY, |l| f64::from(*l) - self.normaliser)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(continuations: &[&[i32]]) -> Tree {
        let mut tree = Tree::default();
        for continuation in continuations {
            tree.insert(&continuation.iter().map(|t| LlamaToken(*t)).collect::<Vec<_>>());
        }
        tree
    }

    #[test]
    fn beginnings_are_shared_and_the_last_token_is_not_computed() {
        let tree = tree(&[&[1, 2, 9], &[1, 2, 3, 9], &[1, 4, 9], &[5]]);
        assert_eq!((tree.nodes.len(), tree.leaves()), (4, 2));
        assert_eq!(
            tree.nodes[0].leaves.len(),
            2,
            "the first token belongs to both branches"
        );
        assert_eq!(tree.path(&[1, 2, 3, 9].map(LlamaToken)).len(), 3);
        assert!(tree.path(&[LlamaToken(5)]).is_empty());
    }

    #[test]
    fn log_probabilities_sum_to_one() {
        let logits = [1.0, 2.0, -3.0];
        let distribution = LogSoftmax::new(&logits);
        let sum: f64 = (0..3).map(|i| distribution.of(LlamaToken(i)).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(distribution.of(LlamaToken(3)), f64::NEG_INFINITY);
    }
}
