// Search the index of the site as its page does, with lunr: print, for each term, the pages that are found, the best first.
// Arguments: the path of lunr.js, the search index, and a JSON list of terms.
const [lunrPath, indexPath, terms] = process.argv.slice(2);
const lunr = require(lunrPath);
const documents = JSON.parse(require("fs").readFileSync(indexPath)).docs;
const index = lunr(function () {
  this.ref("location");
  this.field("title", { boost: 1000 });
  this.field("text");
  for (const each of documents) this.add(each, { boost: each.boost || 1 });
});
const found = JSON.parse(terms).map((term) => {
  // Every word is required, as in the search of the site; lunr leaves out words such as "in" and "the".
  const words = lunr.tokenizer(term).map(String).filter((word) => lunr.stopWordFilter(word));
  const results = index.query((query) => words.forEach((word) => query.term(word.toLowerCase(), { presence: lunr.Query.presence.REQUIRED })));
  return [...new Set(results.map((each) => each.ref.split("#")[0]))];
});
console.log(JSON.stringify(found));
