//! The policy `lru`, leaf first: one list of resident pages per size class, coldest first. Whoever uses a chain names its pages from
//! the last to the first, so that ancestors stand behind their descendants.

use std::collections::HashMap;

use crate::column::{Column, NONE};

/// The page stands in no list.
const OUT: u32 = NONE - 1;
/// A search for a victim looks at so many pages at most; what it passed is not looked at again soon.
const MAX_STEPS: usize = 16_384;

struct Link {
    colder: u32,
    warmer: u32,
    /// Unix seconds of the last use.
    used: u32,
}

#[derive(Clone, Copy)]
struct List {
    coldest: u32,
    warmest: u32,
}

pub struct Lru {
    links: Column<Link>,
    lists: HashMap<u32, List>,
}

impl Lru {
    pub fn new() -> Self {
        Lru { links: Column::new(), lists: HashMap::new() }
    }

    /// The number names a new page, stored or last used at `now`.
    pub fn born(&mut self, page: u32, now: u32) {
        while self.links.len() <= page as usize {
            self.links.push(Link { colder: OUT, warmer: NONE, used: 0 });
        }
        let link = &mut self.links[page];
        debug_assert_eq!(link.colder, OUT);
        link.used = now;
    }

    /// The page is resident now, in a slot of this class: colder than its parent, if that is, else the warmest.
    pub fn arrived(&mut self, page: u32, class: u32, parent: u32) {
        if parent == NONE || self.links[parent].colder == OUT {
            self.push_warmest(page, class);
            return;
        }
        let colder = self.links[parent].colder;
        self.links[page].colder = colder;
        self.links[page].warmer = parent;
        self.links[parent].colder = page;
        match colder {
            NONE => self.lists.get_mut(&class).expect("the parent is in the list").coldest = page,
            colder => self.links[colder].warmer = page,
        }
    }

    /// The page is not resident any more. Without effect if it was not.
    pub fn left(&mut self, page: u32, class: u32) {
        let Link { colder, warmer, .. } = self.links[page];
        if colder == OUT {
            return;
        }
        let list = self.lists.get_mut(&class).expect("the page is in a list");
        match colder {
            NONE => list.coldest = warmer,
            colder => self.links[colder].warmer = warmer,
        }
        match warmer {
            NONE => list.warmest = colder,
            warmer => self.links[warmer].colder = colder,
        }
        self.links[page].colder = OUT;
    }

    /// A request was served the page, or stored something below it.
    pub fn used(&mut self, page: u32, class: u32, now: u32) {
        self.links[page].used = now;
        self.warm(page, class);
    }

    /// The page is of less use than any that is used.
    pub fn demote(&mut self, page: u32, class: u32) {
        if self.links[page].colder == OUT {
            return;
        }
        self.left(page, class);
        let list = self.lists.get_mut(&class).expect("the page was in a list");
        let next = list.coldest;
        list.coldest = page;
        if next == NONE {
            list.warmest = page;
        } else {
            self.links[next].colder = page;
        }
        self.links[page].colder = NONE;
        self.links[page].warmer = next;
    }

    /// The page of this class that is to leave DRAM next.
    ///
    /// `may_leave` says whether a page can: it is not pinned, and nothing hangs on it.
    pub fn victim(&mut self, class: u32, may_leave: impl Fn(u32) -> bool) -> Option<u32> {
        let steps = MAX_STEPS;
        let mut last = NONE;
        for _ in 0..steps {
            let page = self.lists.get(&class)?.coldest;
            if page == NONE || page == last {
                return None;
            }
            if may_leave(page) {
                return Some(page);
            }
            if last == NONE {
                last = page;
            }
            self.warm(page, class);
        }
        None
    }

    /// Up to `limit` pages of this class, those first that leave first.
    pub fn coldest(&self, class: u32, limit: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let mut page = self.lists.get(&class).map_or(NONE, |list| list.coldest);
        while page != NONE && found.len() < limit {
            found.push(page);
            page = self.links[page].warmer;
        }
        found
    }

    /// What the page is worth, comparable within the pool: larger is kept.
    pub fn worth(&self, page: u32, now: u32) -> f64 {
        1.0 / (1.0 + f64::from(now.saturating_sub(self.links[page].used)))
    }

    fn warm(&mut self, page: u32, class: u32) {
        if self.links[page].colder != OUT {
            self.left(page, class);
            self.push_warmest(page, class);
        }
    }

    fn push_warmest(&mut self, page: u32, class: u32) {
        let list = self.lists.entry(class).or_insert(List { coldest: NONE, warmest: NONE });
        let colder = list.warmest;
        list.warmest = page;
        if colder == NONE {
            list.coldest = page;
        } else {
            self.links[colder].warmer = page;
        }
        self.links[page].colder = colder;
        self.links[page].warmer = NONE;
    }

    pub fn heap_bytes(&self) -> usize {
        self.links.heap_bytes() + self.lists.capacity() * 13
    }

    /// Panic unless exactly the pages that `is_listed` names stand in the list of their class.
    pub fn check(&self, pages: u32, class_of: impl Fn(u32) -> Option<u32>) {
        let mut listed = 0;
        for (&class, list) in &self.lists {
            let (mut colder, mut page) = (NONE, list.coldest);
            while page != NONE {
                assert_eq!(self.links[page].colder, colder, "a list is linked wrongly");
                assert_eq!(class_of(page), Some(class), "a page stands in a wrong list");
                listed += 1;
                (colder, page) = (page, self.links[page].warmer);
            }
            assert_eq!(list.warmest, colder);
        }
        assert_eq!((0..pages).filter(|&page| class_of(page).is_some()).count(), listed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: u32 = 4096;

    fn policy(pages: u32) -> Lru {
        let mut policy = Lru::new();
        for page in 0..pages {
            policy.born(page, page);
            policy.arrived(page, CLASS, NONE);
        }
        policy
    }

    fn order(policy: &Lru) -> Vec<u32> {
        policy.coldest(CLASS, 99)
    }

    #[test]
    fn coldest_page_that_may_leave_is_the_victim() {
        let mut policy = policy(4);
        policy.used(0, CLASS, 9);
        assert_eq!(order(&policy), [1, 2, 3, 0]);
        assert_eq!(policy.victim(CLASS, |page| page == 3), Some(3));
        assert_eq!(policy.victim(CLASS, |_| false), None);
        assert_eq!(policy.victim(8192, |_| true), None);
    }

    #[test]
    fn page_below_a_resident_one_stands_before_it() {
        let mut policy = policy(2);
        policy.born(2, 5);
        policy.arrived(2, CLASS, 0);
        assert_eq!(order(&policy), [2, 0, 1]);
        policy.left(0, CLASS);
        policy.born(3, 5);
        policy.arrived(3, CLASS, 0);
        assert_eq!(order(&policy), [2, 1, 3]);
        policy.demote(3, CLASS);
        assert_eq!(order(&policy), [3, 2, 1]);
        policy.check(4, |page| (page != 0).then_some(CLASS));
    }

    #[test]
    fn recently_used_page_is_worth_more() {
        let policy = policy(3);
        assert!(policy.worth(2, 10) > policy.worth(0, 10));
        assert_eq!(policy.worth(2, 2), policy.worth(2, 0));
    }
}
