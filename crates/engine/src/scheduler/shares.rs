//! How many rows of the next step each lane gets: pure functions of what the lanes need.

/// Rows that a lane could use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowDemand {
    /// Tokens that are known and not computed yet; one while it generates, more of a prompt.
    pub pending: usize,
    /// Tokens guessed to come after them.
    pub drafts: usize,
}

/// What a step may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Rows.
    pub rows: usize,
    /// Rows with logits.
    pub logits: usize,
    /// Rows of prompts beside lanes that generate, whom they keep waiting.
    pub chunk: usize,
}

/// Rows that a lane gets: some of its pending tokens, then some of its drafts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Share {
    pub pending: usize,
    pub drafts: usize,
}

/// Divides a step among lanes. Everyone who generates gets a row, so that nobody waits longer than
/// one step; prompts share what is left, and a long one does not hold up a short one; guesses come
/// last.
///
/// Lanes come in the order in which they are served. `prompts` is memory to work in.
pub(crate) fn share(
    demands: &[RowDemand],
    room: Room,
    shares: &mut Vec<Share>,
    prompts: &mut Vec<usize>,
) {
    shares.clear();
    shares.resize(demands.len(), Share::default());
    let mut left = room.rows;
    for (share, want) in shares.iter_mut().zip(demands) {
        if want.pending == 1 && left > 0 {
            share.pending = 1;
            left -= 1;
        }
    }
    let generating = left < room.rows;
    prompts.clear();
    prompts.extend((0..demands.len()).filter(|&lane| demands[lane].pending > 1));
    let mut rows = if generating { left.min(room.chunk) } else { left };
    left -= rows;
    // The first always gets a part; otherwise the shortest come first, so that most of the waiting
    // requests have their first token soonest.
    let mut give = |lane: usize, most: usize, rows: &mut usize| {
        let given = (demands[lane].pending - shares[lane].pending).min(most).min(*rows);
        shares[lane].pending += given;
        *rows -= given;
    };
    if let Some(&first) = prompts.first() {
        give(first, rows.div_ceil(4), &mut rows);
    }
    prompts.sort_unstable_by_key(|&lane| (demands[lane].pending, lane));
    prompts.iter().for_each(|&lane| give(lane, usize::MAX, &mut rows));
    left += rows;
    // Every lane that comes to the end of its tokens needs a row of logits.
    let ends = |(share, want): (&Share, &RowDemand)| share.pending == want.pending;
    let mut logits =
        room.logits.saturating_sub(shares.iter().zip(demands).filter(|&p| ends(p)).count());
    for (share, want) in shares.iter_mut().zip(demands) {
        if want.pending == 1 && share.pending == 1 {
            share.drafts = want.drafts.min(left).min(logits);
            left -= share.drafts;
            logits -= share.drafts;
        }
    }
}

/// How many rows of prompts a step takes beside lanes that generate: as many as are computed in the
/// time that a reader does not mind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChunkPace {
    /// Rows a second, as steps with many rows showed.
    rate: Option<f64>,
}

impl ChunkPace {
    /// Longest that a prompt's part may keep others waiting, in seconds.
    const PATIENCE: f64 = 0.15;
    /// Fewest rows: less would waste the read of the weights.
    const FEWEST: usize = 32;

    pub fn rows(&self, most: usize) -> usize {
        let rows = self.rate.map_or(2 * Self::FEWEST, |rate| (rate * Self::PATIENCE) as usize);
        rows.clamp(Self::FEWEST, most.max(Self::FEWEST)).min(most)
    }

    /// A step of `rows` rows took `seconds`.
    pub fn took(&mut self, rows: usize, seconds: f64) {
        if rows >= Self::FEWEST && seconds > 0.0 {
            let now = rows as f64 / seconds;
            self.rate = Some(self.rate.map_or(now, |before| 0.75 * before + 0.25 * now));
        }
    }
}

/// Decides how many tokens a device samples in one submission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlayPace {
    /// Asked for by the user.
    asked: Option<usize>,
    /// Seconds of a play, as the last submission showed.
    seconds: Option<f64>,
}

impl PlayPace {
    /// Longest that a submission may keep the next word from the reader, in seconds.
    const SMOOTH: f64 = 0.04;
    /// Longest that a submission may take, however many tokens were asked for, in seconds.
    const LONGEST: f64 = 0.4;
    /// Most plays unless more are asked for: what is played past an end is wasted.
    const USUAL: usize = 16;

    pub fn new(asked: Option<usize>) -> PlayPace {
        PlayPace { asked, seconds: None }
    }

    /// Plays of the next submission, `left` being all that may come and `most` what fits.
    pub fn plays(&self, left: usize, most: usize) -> usize {
        let smooth = match (self.asked, self.seconds) {
            // The first shows how long one takes.
            (_, None) => 1,
            // Drivers reset a GPU that does not come back for a second or two.
            (Some(asked), Some(seconds)) => asked.min((Self::LONGEST / seconds.max(1e-6)) as usize),
            (None, Some(seconds)) => ((Self::SMOOTH / seconds.max(1e-6)) as usize).min(Self::USUAL),
        };
        smooth.clamp(1, most.max(1)).min(left.max(1))
    }

    /// `plays` plays took `seconds`.
    pub fn took(&mut self, plays: usize, seconds: f64) {
        self.seconds = Some(seconds / plays.max(1) as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { rows: 512, logits: 64, chunk: 128 };

    fn demands(list: &[(usize, usize)]) -> Vec<RowDemand> {
        list.iter().map(|&(pending, drafts)| RowDemand { pending, drafts }).collect()
    }

    fn shares(list: &[(usize, usize)], room: Room) -> Vec<(usize, usize)> {
        let mut shares = Vec::new();
        share(&demands(list), room, &mut shares, &mut Vec::new());
        shares.iter().map(|share| (share.pending, share.drafts)).collect()
    }

    #[test]
    fn prompts_alone_fill_the_step_and_short_ones_finish_first() {
        assert_eq!(shares(&[(1000, 0)], ROOM), [(512, 0)]);
        assert_eq!(shares(&[(1000, 0), (50, 0), (1000, 0)], ROOM), [(462, 0), (50, 0), (0, 0)]);
        // A crowd of short ones does not stop the first.
        let crowd: Vec<_> = std::iter::once((9000, 0)).chain(vec![(60, 0); 32]).collect();
        let found = shares(&crowd, ROOM);
        assert_eq!((found[0].0, found[1].0, found[6].0, found[7].0), (128, 60, 60, 24));
        let alike = shares(&[(50, 0); 32], ROOM);
        assert_eq!((alike[0].0, alike[9].0, alike[10].0, alike[11].0), (50, 50, 12, 0));
    }

    #[test]
    fn nobody_who_generates_waits_and_prompts_keep_to_their_chunk() {
        let found = shares(&[(1, 0), (1000, 0), (1, 0), (70, 0)], ROOM);
        assert_eq!(found, [(1, 0), (58, 0), (1, 0), (70, 0)]);
        let crowd = shares(&vec![(1, 3); 512], ROOM);
        assert!(crowd.iter().all(|&share| share == (1, 0)));
    }

    #[test]
    fn guesses_take_what_is_left_of_rows_and_logits() {
        assert_eq!(shares(&[(1, 7), (1, 7)], ROOM), [(1, 7), (1, 7)]);
        let room = Room { logits: 6, ..ROOM };
        assert_eq!(shares(&[(1, 7), (1, 7)], room), [(1, 4), (1, 0)]);
        // A prompt that ends needs its row of logits first.
        assert_eq!(shares(&[(1, 7), (5, 0), (600, 0)], room), [(1, 4), (5, 0), (123, 0)]);
        let room = Room { rows: 4, ..ROOM };
        assert_eq!(shares(&[(1, 7), (1, 7)], room), [(1, 2), (1, 0)]);
    }

    #[test]
    fn chunks_follow_the_clock() {
        let mut pace = ChunkPace::default();
        assert_eq!(pace.rows(512), 64);
        pace.took(512, 0.1);
        assert_eq!(pace.rows(512), 512);
        for _ in 0..100 {
            pace.took(64, 0.64);
        }
        assert_eq!(pace.rows(512), 32);
        assert_eq!(pace.rows(8), 8);
    }

    #[test]
    fn plays_follow_the_clock_and_the_user() {
        let mut pace = PlayPace::new(None);
        assert_eq!(pace.plays(100, 64), 1);
        pace.took(1, 0.2);
        assert_eq!(pace.plays(100, 64), 1);
        pace.took(1, 0.01);
        assert_eq!(pace.plays(100, 64), 4);
        pace.took(4, 0.001);
        assert_eq!(pace.plays(100, 64), PlayPace::USUAL);
        assert_eq!(pace.plays(3, 64), 3);
        let mut asked = PlayPace::new(Some(1000));
        assert_eq!(asked.plays(1000, 64), 1);
        asked.took(1, 0.001);
        assert_eq!(asked.plays(1000, 64), 64);
        asked.took(1, 0.1);
        assert_eq!(asked.plays(1000, 64), 4);
    }
}
