//! Random folders, and a second, shorter statement of the rule that tells which files are a model.

use std::collections::{BTreeMap, BTreeSet};

use testkit::random::Random;

/// The files of a folder by name; an index has the names of its files.
pub type Folder = BTreeMap<String, Option<Vec<String>>>;

/// The answer to a folder.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// The files that are loaded, and whether there are warnings.
    Model(BTreeSet<String>, bool),
    Several,
    Missing,
    Nothing,
}

/// The part of a model that a name claims: an index, the whole, or the shard with a number of a number of shards.
#[derive(PartialEq)]
enum Part {
    Index,
    Whole,
    Shard(u64, u64),
}

/// Makes a folder with a model and, often, something beside it.
pub fn folder(random: &mut Random) -> Folder {
    let (base, variant) = (random.pick(&["model", "m"]), random.pick(&["", "", ".fp16"]));
    let shard = |random: &mut Random, number: u64, count: u64| match random.below(4) {
        0 => format!("{base}{variant}-{number:05}-of-{count:05}.safetensors"),
        1 => format!("{base}-{number:05}-of-{count:05}{variant}.safetensors"),
        2 => format!("{base}-{number:06}-of-{count:06}{variant}.safetensors"),
        _ => format!("{base}{variant}_{number}_of_{count}.safetensors"),
    };
    let mut folder = Folder::new();
    for _ in 0..1 + random.below(2) {
        let count = 1 + random.below(3) as u64;
        let (start, style) = (random.below(2) as u64, random.next_number());
        for number in start..start + count {
            // Most files of a set are spelled alike.
            let file = match random.one_in(4) {
                true => shard(random, number, count),
                false => shard(&mut Random::new(style), number, count),
            };
            if !random.one_in(8) {
                folder.insert(file, None);
            }
            if random.one_in(8) {
                folder.insert(shard(random, number, count), None);
            }
        }
    }
    let all: Vec<_> = folder.keys().cloned().collect();
    if random.one_in(3) {
        for index in [".safetensors.index.json", "{}.safetensors.index.json", ".safetensors.index{}.json"] {
            let files: Vec<_> = all.iter().filter(|_| !random.one_in(4)).cloned().collect();
            let gone = random.one_in(4).then(|| "gone.safetensors".to_owned());
            let files: Vec<_> = files.into_iter().chain(gone).collect();
            let variant = if index.contains("{}") { variant } else { "" };
            if !files.is_empty() && random.one_in(2) {
                folder.insert(format!("{base}{}", index.replace("{}", variant)), Some(files));
            }
        }
    }
    if random.one_in(4) {
        folder.retain(|_, index| index.is_some());
        for number in 0..random.below(4) {
            let width = random.pick(&[0, 0, 2]);
            folder.insert(format!("{base}{variant}-{number:0width$}.safetensors"), None);
        }
    }
    if random.one_in(5) {
        folder.insert(
            random.pick(&["model.safetensors", "m.safetensors", "model.fp16.safetensors"]).to_owned(),
            None,
        );
    }
    folder
}

/// Takes the name of a file apart: the model, and the part of it.
fn parse(file: &str) -> (String, Part) {
    if let Some(rest) = file.strip_suffix(".json") {
        return (rest.replace(".safetensors", "").replace(".index", ""), Part::Index);
    }
    let name = file.strip_suffix(".safetensors").unwrap();
    let Some(of) = name.find("-of-").or(name.find("_of_")) else { return (name.to_owned(), Part::Whole) };
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).count();
    let (before, behind) = (&name[..of], &name[of + 4..]);
    let start = of - digits(&before.chars().rev().collect::<String>());
    let end = digits(behind);
    let (number, count) = (before[start..].parse().unwrap(), behind[..end].parse().unwrap());
    (format!("{}{}", &name[..start - 1], &behind[end..]), Part::Shard(count, number))
}

pub fn answer(folder: &Folder) -> Answer {
    let parts: Vec<_> = folder.keys().map(|file| (file.clone(), parse(file))).collect();
    // Whole files whose names differ in a number are one model.
    let key = |model: &str| match model.rsplit_once('-') {
        Some((stem, number)) => number.parse().ok().map(|number: u64| (format!("{stem}-#"), number)),
        None => None,
    };
    let twins = |model: &str| {
        let same = |(_, (other, part)): &&(String, (String, Part))| {
            *part == Part::Whole && key(other).map(|key| key.0) == key(model).map(|key| key.0)
        };
        if key(model).is_some() { parts.iter().filter(same).count() } else { 0 }
    };
    let name_of = |model: &str, part: &Part| match key(model) {
        Some((stem, _)) if *part == Part::Whole && twins(model) > 1 => stem,
        _ => model.to_owned(),
    };
    let base = |model: &str| model.split('.').next().unwrap().to_owned();
    let usual = parts.iter().any(|(_, (model, _))| base(model) == "model");
    let models = parts.iter().filter(|(_, (model, _))| !usual || base(model) == "model");
    let model = if parts.iter().any(|(_, (model, _))| model == "model") {
        "model".to_owned()
    } else {
        let models: BTreeSet<_> = models.map(|(_, (model, part))| name_of(model, part)).collect();
        match models.len() {
            0 => return Answer::Nothing,
            1 => models.into_iter().next().unwrap(),
            _ => return Answer::Several,
        }
    };
    let mine = || parts.iter().filter(|(_, (other, _))| *other == model);
    let whole = folder.contains_key(&format!("{model}.safetensors")).then(|| format!("{model}.safetensors"));
    let mut sets = BTreeMap::<u64, BTreeMap<u64, Vec<String>>>::new();
    for (file, (_, part)) in mine() {
        if let Part::Shard(count, number) = part {
            sets.entry(*count).or_default().entry(*number).or_default().push(file.clone());
        }
    }
    let start = |set: &BTreeMap<u64, Vec<String>>| u64::from(!set.contains_key(&0));
    let lacks = |count: u64, set: &BTreeMap<u64, Vec<String>>| -> BTreeSet<u64> {
        (start(set)..start(set) + count).filter(|number| !set.contains_key(number)).collect()
    };
    let of_set = |count: u64, set: &BTreeMap<u64, Vec<String>>, warns: bool| {
        let is_claimed = set.values().any(|files| files.len() > 1);
        match () {
            () if is_claimed || (set.contains_key(&0) && set.contains_key(&count)) => Answer::Several,
            () if !lacks(count, set).is_empty() => Answer::Missing,
            () => Answer::Model(set.values().flatten().cloned().collect(), warns),
        }
    };
    let complete: Vec<_> = sets.iter().filter(|(count, set)| lacks(**count, set).is_empty()).collect();
    let indexes: BTreeSet<_> = mine().filter_map(|(file, _)| folder[file].as_ref()).collect();
    if indexes.len() > 1 {
        return Answer::Several;
    }
    if let Some(named) = indexes.into_iter().next() {
        let named: BTreeSet<_> = named.iter().cloned().collect();
        let missing: BTreeSet<_> = named.iter().filter(|file| !folder.contains_key(*file)).cloned().collect();
        let unnamed = sets.values().flat_map(BTreeMap::values).flatten().any(|file| !named.contains(file));
        return match (whole, &complete[..]) {
            (Some(whole), _) if missing == named => Answer::Model([whole].into(), true),
            (None, [(count, set)]) if missing == named => of_set(**count, set, true),
            (None, [_, _, ..]) if missing == named => Answer::Several,
            (Some(whole), _) if !named.contains(&whole) => Answer::Several,
            _ if !missing.is_empty() => Answer::Missing,
            _ => Answer::Model(named, unnamed),
        };
    }
    if let Some(whole) = whole {
        return Answer::Model([whole].into(), !complete.is_empty());
    }
    match sets.len() {
        0 => {}
        1 => return of_set(*sets.first_key_value().unwrap().0, sets.first_key_value().unwrap().1, false),
        _ => return Answer::Several,
    }
    let mut numbers = BTreeMap::<u64, Vec<String>>::new();
    for (file, (name, part)) in &parts {
        if let Some((_, number)) = key(name).filter(|(stem, _)| *part == Part::Whole && *stem == model) {
            numbers.entry(number).or_default().push(file.clone());
        }
    }
    match numbers.values().any(|files| files.len() > 1) {
        true => Answer::Several,
        false => Answer::Model(numbers.into_values().flatten().collect(), true),
    }
}
