//! Symbols: how an element was computed. Equal symbols are equal computations in the same order.

use std::collections::HashMap;

/// The number of a computation in [`Symbols`]. The numbers below the number of ranks are the ranks'
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Symbol(pub(super) u32);

/// A set of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankSet(Vec<u64>);

impl RankSet {
    /// The set of one rank; an aggregator, whose number is no rank's, is in no set.
    pub(super) fn of(rank: usize, ranks: usize) -> Self {
        let mut words = vec![0; ranks.div_ceil(64)];
        if rank < ranks {
            words[rank / 64] |= 1 << (rank % 64);
        }
        Self(words)
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    /// A rank that is in both sets.
    fn common(&self, other: &Self) -> Option<usize> {
        let mut words = self.0.iter().zip(&other.0).map(|(a, b)| a & b).enumerate();
        words.find(|&(_, word)| word != 0).map(|(index, word)| index * 64 + word.trailing_zeros() as usize)
    }
}

/// All computations of a run of the interpreter.
#[derive(Debug)]
pub(super) struct Symbols {
    /// The ranks whose inputs each computation reduces.
    ranks: Vec<RankSet>,
    reductions: HashMap<(Symbol, Symbol), Symbol>,
}

impl Symbols {
    pub(super) fn new(ranks: usize) -> Self {
        Self { ranks: (0..ranks).map(|rank| RankSet::of(rank, ranks)).collect(), reductions: HashMap::new() }
    }

    /// The input of a rank.
    pub(super) fn input(rank: usize) -> Symbol {
        Symbol(u32::try_from(rank).unwrap_or(u32::MAX))
    }

    /// The reduction of two operands, or a rank whose input both contain.
    pub(super) fn reduce(&mut self, first: Symbol, second: Symbol) -> Result<Symbol, usize> {
        if let Some(&known) = self.reductions.get(&(first, second)) {
            return Ok(known);
        }
        let (a, b) = (self.ranks_of(first), self.ranks_of(second));
        if let Some(rank) = a.common(b) {
            return Err(rank);
        }
        let mut ranks = a.clone();
        ranks.add(b);
        let symbol = Self::input(self.ranks.len());
        self.ranks.push(ranks);
        self.reductions.insert((first, second), symbol);
        Ok(symbol)
    }

    /// Number of ranks whose inputs a computation reduces.
    pub(super) fn operands(&self, symbol: Symbol) -> usize {
        self.ranks_of(symbol).len()
    }

    fn ranks_of(&self, symbol: Symbol) -> &RankSet {
        &self.ranks[symbol.0 as usize]
    }
}
