//! The module's surface: conversion of arguments and results, and errors. What is done is in the other modules.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple};

use crate::error::{Error, Result, value};
use crate::holds::Held;
use crate::index::{Index, REF_BYTES};
use crate::keys::Key;
use crate::nvme::ReadLimits;
use crate::puts::{Given, State};
use crate::recovery::ENTRY_BYTES;
use crate::slots::Cut;

/// A record of the wire protocol that says where a page lies.
const PLACE_BYTES: usize = 40;

pyo3::create_exception!(
    kvtier_index,
    Refused,
    PyValueError,
    "The request contradicts what is stored; args: code, index of the page, message."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused { code, index, message } => Refused::new_err((code.name(), index, message)),
            Error::Value(message) => PyValueError::new_err(message),
        }
    }
}

/// A number of the width of `T`; any other is a ValueError.
struct Number<T>(T);

impl<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr>> FromPyObject<'a, 'py> for Number<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Number).map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(object.py()) {
                PyValueError::new_err(format!("{} is out of range", *object))
            } else {
                error
            }
        })
    }
}

fn numbers<T>(given: Vec<Number<T>>) -> Vec<T> {
    given.into_iter().map(|number| number.0).collect()
}

/// Hashes, kept alive while they are looked at.
enum Hashes<'py> {
    Listed(Vec<Bound<'py, PyBytes>>),
    /// The length of each, and all of them one behind the other.
    Packed(usize, Bound<'py, PyBytes>),
}

impl<'py> Hashes<'py> {
    fn slices(&self) -> Vec<&[u8]> {
        match self {
            Hashes::Listed(list) => list.iter().map(|hash| hash.as_bytes()).collect(),
            Hashes::Packed(length, all) => all.as_bytes().chunks_exact(*length).collect(),
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Hashes<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = object.cast::<PyList>() {
            let cast = |item: Bound<'py, PyAny>| item.cast_into::<PyBytes>().map_err(PyErr::from);
            return list.iter().map(cast).collect::<PyResult<_>>().map(Hashes::Listed);
        }
        let (length, all) = object.extract::<(Number<usize>, Bound<'py, PyBytes>)>()?;
        if length.0 == 0 || all.as_bytes().len() % length.0 != 0 {
            return Err(PyValueError::new_err(format!("{} bytes are no hashes of {}", all.as_bytes().len(), length.0)));
        }
        Ok(Hashes::Packed(length.0, all))
    }
}

/// A number that a client chose; one that is out of range is its fault.
fn chosen<'py, T>(item: &Bound<'py, PyAny>, index: usize, what: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    item.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(item.py()) {
            let message = format!("{what} {item} is out of range");
            Refused::new_err(("malformed", index, message))
        } else {
            error
        }
    })
}

/// Keys as (group, shard, trailing).
struct KeyList(Vec<Key>);

impl<'a, 'py> FromPyObject<'a, 'py> for KeyList {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let mut keys = Vec::new();
        for (index, item) in object.try_iter()?.enumerate() {
            let (group, shard, trailing) = item?.extract::<(Bound<PyAny>, Bound<PyAny>, Bound<PyAny>)>()?;
            keys.push(Key {
                group: chosen(&group, index, "group")?,
                shard: chosen(&shard, index, "shard")?,
                trailing: chosen(&trailing, index, "trailing")?,
            });
        }
        Ok(KeyList(keys))
    }
}

/// Pages of a put as (hash, group, shard, trailing, size).
struct PutPages<'py> {
    hashes: Vec<Bound<'py, PyBytes>>,
    rest: Vec<(Key, u32)>,
    /// Positions before this one were not looked at.
    skipped: usize,
    /// Nor were so many behind those here.
    ahead: usize,
}

impl<'py> PutPages<'py> {
    /// From the first page of the block that `start` belongs to, and the block before that, on.
    fn from(pages: &Bound<'py, PyAny>, start: usize, stop: usize) -> PyResult<Self> {
        let pages = match pages.cast::<PyList>() {
            Ok(list) => list.clone(),
            Err(_) => PyList::new(pages.py(), pages.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
        };
        let hash_of = |index: usize| -> PyResult<Bound<'py, PyBytes>> {
            let item = pages.get_item(index)?.cast_into::<PyTuple>()?;
            Ok(item.get_item(0)?.cast_into::<PyBytes>()?)
        };
        let stop = stop.min(pages.len());
        let mut skipped = start.min(stop);
        if skipped < stop {
            let hash = hash_of(skipped)?;
            while skipped > 0 {
                skipped -= 1;
                if hash_of(skipped)?.as_bytes() != hash.as_bytes() {
                    break;
                }
            }
        }
        let mut found = PutPages {
            hashes: Vec::with_capacity(stop - skipped),
            rest: Vec::with_capacity(stop - skipped),
            skipped,
            ahead: pages.len() - stop,
        };
        for index in skipped..stop {
            let item = pages.get_item(index)?.cast_into::<PyTuple>()?;
            if item.len() != 5 {
                return Err(PyTypeError::new_err("a page is (hash, group, shard, trailing, size)"));
            }
            found.hashes.push(item.get_item(0)?.cast_into::<PyBytes>()?);
            let key = Key {
                group: chosen(&item.get_item(1)?, index, "group")?,
                shard: chosen(&item.get_item(2)?, index, "shard")?,
                trailing: chosen(&item.get_item(3)?, index, "trailing")?,
            };
            found.rest.push((key, chosen(&item.get_item(4)?, index, "size")?));
        }
        Ok(found)
    }

    fn given(&self) -> Vec<Given<'_>> {
        let pairs = self.hashes.iter().zip(&self.rest);
        pairs.map(|(hash, &(key, size))| Given { hash: hash.as_bytes(), key, size }).collect()
    }
}

/// Pins of holds that were dropped unreleased, until the index is called next.
type Dropped = Arc<Mutex<Vec<Vec<u32>>>>;

#[pyclass(name = "Index", module = "kvtier_index")]
struct PyIndex {
    index: Index,
    dropped: Dropped,
}

impl PyIndex {
    /// The index, its policy up to date, and free of what was dropped.
    fn tidy(&mut self) -> &mut Index {
        self.index.tell_use();
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for pages in dropped {
            self.index.release(&pages);
        }
        &mut self.index
    }
}

type Piece = (u32, u64, u64, Vec<u32>);
type Slots = Vec<(u64, u32)>;
type Reservation = (Vec<(usize, u32)>, usize, bool);
type PlaceTuple = (u64, u64, u32, u64, u64, bool);

#[pymethods]
impl PyIndex {
    #[new]
    fn new(policy: &str) -> PyResult<Self> {
        Ok(PyIndex { index: Index::new(policy)?, dropped: Dropped::default() })
    }

    #[getter]
    fn blocks(&mut self) -> u64 {
        self.tidy().blocks
    }

    #[getter]
    fn dram_pages(&mut self) -> u64 {
        self.tidy().dram_pages
    }

    #[getter]
    fn dram_bytes(&mut self) -> u64 {
        self.tidy().dram_bytes
    }

    #[getter]
    fn slots_in_use(&mut self) -> u64 {
        self.tidy().slots.used
    }

    #[getter]
    fn nvme_pages(&mut self) -> u64 {
        self.tidy().segments.pages
    }

    #[getter]
    fn nvme_bytes(&mut self) -> u64 {
        self.tidy().segments.bytes
    }

    #[getter]
    fn pinned_bytes(&mut self) -> u64 {
        self.tidy().pinned_bytes
    }

    #[getter]
    fn evicted_pages(&self) -> u64 {
        self.index.evicted_pages
    }

    #[getter]
    fn linking(&self) -> bool {
        self.index.recovery.is_under_way()
    }

    #[getter]
    fn orphans(&self) -> u64 {
        self.index.recovery.orphans
    }

    fn index_bytes(&self) -> usize {
        self.index.heap_bytes()
    }

    fn check(&mut self) {
        self.tidy().check();
    }

    // Lookups and gets

    fn find(&mut self, layout: &[u8], hashes: Hashes, keys: KeyList) -> PyResult<(usize, usize)> {
        Ok(self.tidy().find(layout, &hashes.slices(), &keys.0)?)
    }

    fn hold(slf: Bound<'_, Self>, layout: &[u8], hashes: Hashes, keys: KeyList, now: f64) -> PyResult<PyHold> {
        let mut this = slf.try_borrow_mut()?;
        let held = this.tidy().hold(layout, &hashes.slices(), &keys.0, now)?;
        let dropped = this.dropped.clone();
        drop(this);
        Ok(PyHold { index: slf.unbind(), held, dropped })
    }

    fn touch(&mut self, layout: &[u8], hashes: Hashes, now: f64) -> PyResult<()> {
        Ok(self.tidy().touch(layout, &hashes.slices(), now)?)
    }

    fn pin(&mut self, pages: Vec<Number<u32>>) -> PyResult<()> {
        let pages = numbers(pages);
        let index = self.tidy();
        index.check_pages(&pages)?;
        pages.iter().for_each(|&page| index.pin(page));
        Ok(())
    }

    fn unpin(&mut self, pages: Vec<Number<u32>>) -> PyResult<()> {
        Ok(self.tidy().unpin_all(&numbers(pages))?)
    }

    // Puts

    #[pyo3(signature = (layout, parent, pages))]
    fn check_put(&mut self, layout: &[u8], parent: Option<&[u8]>, pages: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let pages = PutPages::from(pages, 0, usize::MAX)?;
        let states = self.tidy().check_put(layout, parent, &pages.given())?;
        Ok(states.into_iter().map(|state| state as u32).collect())
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (layout, parent, pages, start, stop, now, max_slots))]
    fn reserve(
        &mut self,
        layout: &[u8],
        parent: Option<&[u8]>,
        pages: &Bound<'_, PyAny>,
        start: Number<usize>,
        stop: Number<usize>,
        now: f64,
        max_slots: Number<u64>,
    ) -> PyResult<Reservation> {
        let pages = PutPages::from(pages, start.0, stop.0)?;
        let skipped = pages.skipped;
        let start = start.0.saturating_sub(skipped);
        let reserved = self.tidy().reserve(layout, parent, &pages.given(), start, pages.ahead, now, max_slots.0);
        let reserved = reserved.map_err(|error| match error {
            Error::Refused { code, index, message } => Error::Refused { code, index: index + skipped, message },
            other => other,
        })?;
        let taken = reserved.taken.into_iter().map(|(index, page)| (index + skipped, page));
        Ok((taken.collect(), reserved.stopped + skipped, reserved.is_busy))
    }

    fn commit(&mut self, pages: Vec<Number<u32>>, digests: &[u8]) -> PyResult<usize> {
        Ok(self.tidy().commit(&numbers(pages), digests)?)
    }

    fn abort(&mut self, pages: Vec<Number<u32>>) -> PyResult<()> {
        Ok(self.tidy().abort(&numbers(pages))?)
    }

    fn refs<'py>(&mut self, py: Python<'py>, pages: Vec<Number<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        let pages = numbers(pages);
        let index = self.tidy();
        index.check_pages(&pages)?;
        let mut packed = Vec::with_capacity(pages.len() * REF_BYTES);
        pages.iter().for_each(|&page| index.pack_ref(page, &mut packed));
        Ok(PyBytes::new(py, &packed))
    }

    // Chunks

    #[allow(clippy::too_many_arguments)]
    fn add_chunk(
        &mut self,
        chunk: Number<u64>,
        slot_bytes: Number<u32>,
        slots: Number<u32>,
        payload_at: Number<u64>,
        header_at: Number<u64>,
        header_bytes: Number<u64>,
        generations: &[u8],
    ) -> PyResult<()> {
        let cut = Cut {
            number: chunk.0,
            slot_bytes: slot_bytes.0,
            slots: slots.0,
            payload_at: payload_at.0,
            header_at: header_at.0,
            header_bytes: header_bytes.0,
        };
        Ok(self.tidy().slots.add_chunk(&cut, unpack_generations(generations)?)?)
    }

    fn free_slots(&mut self, slot_bytes: Number<u32>) -> u64 {
        self.tidy().slots.free(slot_bytes.0)
    }

    fn can_evict(&mut self, slot_bytes: Number<u32>) -> bool {
        self.tidy().can_evict(slot_bytes.0)
    }

    fn chunks(&mut self) -> Vec<(u64, u32, u32, u32, bool, f64)> {
        let chunks = self.tidy().slots.iter();
        chunks.map(|it| (it.number, it.slot_bytes, it.len(), it.used, it.busy == 0, it.last_use)).collect()
    }

    fn retire_chunks(&mut self) {
        self.tidy().slots.retire_all();
    }

    fn clear_chunk(&mut self, chunk: Number<u64>, limit: Number<usize>) -> PyResult<u32> {
        Ok(self.tidy().clear_chunk(chunk.0, limit.0)?)
    }

    fn reopen_chunk(&mut self, chunk: Number<u64>) -> PyResult<()> {
        Ok(self.tidy().reopen_chunk(chunk.0)?)
    }

    fn drop_slots(&mut self, chunk: Number<u64>, slots: Vec<Number<u32>>) -> PyResult<usize> {
        Ok(self.tidy().drop_slots(chunk.0, &numbers(slots))?)
    }

    // Nvme

    fn read_plan(
        &mut self,
        pages: Vec<Number<u32>>,
        max_bytes: Number<u64>,
        max_pieces: Number<usize>,
        max_gap: Number<u64>,
        now: f64,
    ) -> PyResult<Vec<Piece>> {
        let limits = ReadLimits { bytes: max_bytes.0, pieces: max_pieces.0, gap: max_gap.0 };
        let reads = self.tidy().read_plan(&numbers(pages), limits, now)?;
        Ok(reads.into_iter().map(|it| (it.segment, it.offset, it.bytes, it.pages)).collect())
    }

    fn finish_read(&mut self, good: Vec<Number<u32>>, bad: Vec<Number<u32>>, failed: Vec<Number<u32>>) -> PyResult<()> {
        Ok(self.tidy().finish_read(&numbers(good), &numbers(bad), &numbers(failed))?)
    }

    fn dirty(&mut self, pages: Vec<Number<u32>>) -> PyResult<Vec<u32>> {
        Ok(self.tidy().dirty(&numbers(pages))?)
    }

    fn next_dirty(&mut self, slot_bytes: Number<u32>, limit: Number<usize>) -> Vec<u32> {
        self.tidy().next_dirty(slot_bytes.0, limit.0)
    }

    fn chain_of(&mut self, layout: &[u8], hash_: &[u8], keys: Vec<(Number<u32>, Number<u16>)>) -> PyResult<Vec<u32>> {
        let keys: Vec<(u32, u16)> = keys.into_iter().map(|(group, shard)| (group.0, shard.0)).collect();
        Ok(self.tidy().chain_of(layout, hash_, &keys)?)
    }

    fn written(&mut self, pages: Vec<Number<u32>>, segment: Number<u32>, offsets: Vec<Number<u64>>) -> PyResult<()> {
        Ok(self.tidy().written(&numbers(pages), segment.0, &numbers(offsets))?)
    }

    fn not_written(&mut self, pages: Vec<Number<u32>>) -> PyResult<()> {
        Ok(self.tidy().not_written(&numbers(pages))?)
    }

    fn place_of(&mut self, page: Number<u32>) -> PyResult<Option<(u32, u64, u32)>> {
        Ok(self.tidy().place_of(page.0)?)
    }

    fn places_of(&mut self, pages: Vec<Number<u32>>) -> PyResult<Vec<Option<(u32, u64, u32)>>> {
        Ok(self.tidy().places_of(&numbers(pages))?)
    }

    fn in_segment(&mut self, segment: Number<u32>, pages: Vec<Number<u32>>) -> Vec<u32> {
        self.tidy().in_segment(segment.0, &numbers(pages))
    }

    fn without_slot(&mut self, pages: Vec<Number<u32>>) -> PyResult<Vec<u32>> {
        Ok(self.tidy().without_slot(&numbers(pages))?)
    }

    fn detached(&mut self, pages: Vec<Number<u32>>) -> PyResult<Vec<u32>> {
        Ok(self.tidy().detached(&numbers(pages))?)
    }

    fn parent_page(&mut self, page: Number<u32>) -> PyResult<Option<u32>> {
        Ok(self.tidy().parent_page(page.0)?)
    }

    fn stretches(&mut self, pages: Vec<Number<u32>>) -> PyResult<Vec<Vec<u32>>> {
        Ok(self.tidy().stretches(&numbers(pages))?)
    }

    fn segment_live(&mut self, segment: Number<u32>) -> (u32, u64, f64) {
        self.tidy().segment_live(segment.0)
    }

    fn segment_pages(&mut self, segment: Number<u32>) -> Vec<u32> {
        self.tidy().segment_pages(segment.0)
    }

    fn drop_segment(&mut self, segment: Number<u32>, limit: Number<usize>) -> u32 {
        self.tidy().drop_segment(segment.0, limit.0)
    }

    fn moved(
        &mut self,
        page: Number<u32>,
        from_segment: Number<u32>,
        from_offset: Number<u64>,
        segment: Number<u32>,
        offset: Number<u64>,
    ) -> PyResult<bool> {
        let (from, to) = ((from_segment.0, from_offset.0), (segment.0, offset.0));
        Ok(self.tidy().moved(page.0, from, to)?)
    }

    fn worth(&mut self, pages: Vec<Number<u32>>) -> PyResult<Vec<f64>> {
        Ok(self.tidy().worth(&numbers(pages))?)
    }

    #[pyo3(signature = (layout, hash_, max_gap=Number(65536)))]
    fn runs(&mut self, layout: &[u8], hash_: &[u8], max_gap: Number<u64>) -> PyResult<(usize, u64)> {
        Ok(self.tidy().runs(layout, hash_, max_gap.0)?)
    }

    // Deletion, expiry, pins

    fn delete<'py>(&mut self, py: Python<'py>, layout: &[u8], hash_: &[u8]) -> PyResult<(Bound<'py, PyBytes>, Slots)> {
        let layout = crate::keys::fingerprint(layout)?;
        let (hashes, slots) = self.tidy().delete(&layout, hash_);
        Ok((PyBytes::new(py, &hashes), slots))
    }

    fn free_deleted(&mut self, slots: Vec<(Number<u64>, Number<u32>)>) {
        let slots: Vec<(u64, u32)> = slots.into_iter().map(|(chunk, slot)| (chunk.0, slot.0)).collect();
        self.tidy().free_deleted(&slots);
    }

    fn take_late(&mut self) -> Vec<(u64, u32)> {
        self.tidy().take_late()
    }

    fn expire<'py>(
        &mut self,
        py: Python<'py>,
        before: f64,
        limit: Number<usize>,
    ) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let before = before.clamp(0.0, f64::from(u32::MAX)).ceil() as u32;
        let index = self.tidy();
        let nodes = index.expired(before, limit.0).into_iter();
        nodes
            .map(|node| {
                let layout = PyBytes::new(py, index.tree.fingerprint(node));
                (layout, PyBytes::new(py, &index.tree.hash(node)))
            })
            .collect()
    }

    fn pin_prefix(&mut self, layout: &[u8], hashes: Hashes, until: f64, limit_bytes: Number<u64>) -> PyResult<usize> {
        Ok(self.tidy().pin_prefix(layout, &hashes.slices(), until, limit_bytes.0)?)
    }

    fn unpin_expired(&mut self, now: f64) {
        let index = self.tidy();
        let now = index.tick(now);
        index.unpin_expired(now);
    }

    // Recovery

    fn stage_slots(&mut self, chunk: Number<u64>, records: &[u8]) -> PyResult<()> {
        Ok(self.tidy().stage_slots(chunk.0, records)?)
    }

    fn stage_deleted(&mut self, layout: &[u8], prints: &[u8], cutoffs: &[u8]) -> PyResult<()> {
        let layout = crate::keys::fingerprint(layout)?;
        Ok(self.tidy().stage_deleted(&layout, prints, cutoffs)?)
    }

    fn stage_entries(&mut self, segment: Number<u32>, entries: &[u8], layouts: &[u8]) -> PyResult<usize> {
        Ok(self.tidy().stage_entries(segment.0, entries, layouts)?)
    }

    fn stage_links(&mut self, entries: &[u8], layouts: &[u8]) -> PyResult<()> {
        Ok(self.tidy().stage_links(entries, layouts)?)
    }

    fn link(&mut self, limit: Number<usize>) -> bool {
        self.tidy().link_some(limit.0)
    }
}

fn unpack_generations(packed: &[u8]) -> Result<Option<Vec<u64>>> {
    if packed.is_empty() {
        return Ok(None);
    }
    if packed.len() % 8 != 0 {
        return value(format!("{} bytes are no whole number of generations", packed.len()));
    }
    let words = packed.chunks_exact(8);
    Ok(Some(words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()))
}

#[pyclass(name = "Hold", module = "kvtier_index")]
struct PyHold {
    index: Py<PyIndex>,
    held: Held,
    dropped: Dropped,
}

#[pymethods]
impl PyHold {
    #[getter]
    fn blocks(&self) -> usize {
        self.held.blocks
    }

    #[getter]
    fn pages(&self) -> Vec<u32> {
        self.held.pages.clone()
    }

    fn ready_blocks(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.index.bind(py).try_borrow()?.index.ready_blocks(&self.held))
    }

    fn missing(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.index.bind(py).try_borrow()?.index.missing(&self.held))
    }

    fn settle(&mut self, py: Python<'_>, blocks: Number<usize>) -> PyResult<()> {
        let mut index = self.index.bind(py).try_borrow_mut()?;
        index.tidy().settle(&mut self.held, blocks.0);
        Ok(())
    }

    fn places(&self, py: Python<'_>, start: Number<usize>, stop: Number<usize>) -> PyResult<Vec<PlaceTuple>> {
        let places = self.index.bind(py).try_borrow()?.index.places(&self.held, start.0, stop.0)?;
        let tuple = |it: crate::holds::Place| {
            (it.chunk, it.payload_offset, it.size, it.generation_offset, it.generation, it.was_below)
        };
        Ok(places.into_iter().map(tuple).collect())
    }

    fn pack_places<'py>(
        &self,
        py: Python<'py>,
        start: Number<usize>,
        stop: Number<usize>,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<u64>)> {
        let places = self.index.bind(py).try_borrow()?.index.places(&self.held, start.0, stop.0)?;
        let mut packed = Vec::with_capacity(places.len() * PLACE_BYTES);
        let mut chunks = Vec::new();
        for it in &places {
            for number in [it.chunk, it.payload_offset, it.generation_offset, it.generation] {
                packed.extend_from_slice(&number.to_le_bytes());
            }
            packed.extend_from_slice(&it.size.to_le_bytes());
            packed.extend_from_slice(&u32::from(it.was_below).to_le_bytes());
            if chunks.last() != Some(&it.chunk) {
                chunks.push(it.chunk);
            }
        }
        chunks.sort_unstable();
        chunks.dedup();
        Ok((PyBytes::new(py, &packed), chunks))
    }

    fn bytes(&self) -> (u64, u64) {
        self.held.bytes()
    }

    fn release(&mut self, py: Python<'_>) -> PyResult<()> {
        let mut index = self.index.bind(py).try_borrow_mut()?;
        let held = std::mem::take(&mut self.held);
        index.tidy().release(&held.pages);
        Ok(())
    }
}

impl Drop for PyHold {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.held.pages);
        if !pages.is_empty() {
            // May happen within any call: the pins go with the next one.
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(pages);
        }
    }
}

/// The Python module.
#[pymodule]
fn kvtier_index(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyIndex>()?;
    module.add_class::<PyHold>()?;
    module.add("Refused", module.py().get_type::<Refused>())?;
    let int = module.py().get_type::<PyInt>();
    let key = module.py().get_type::<PyTuple>().get_item((&int, &int, &int))?;
    module.add("Key", key)?;
    module.add("KNOWN", State::Known as u32)?;
    module.add("FRESH", State::Fresh as u32)?;
    module.add("BUSY", State::Busy as u32)?;
    module.add("REF_BYTES", REF_BYTES)?;
    module.add("ENTRY_BYTES", ENTRY_BYTES)
}
